// The order of the work tiles of a persistent grid: heads in sections whose K and V stay in L2,
// within a section the last rows first, so that under a causal mask the longest tiles start first.
#pragma once

#include <cstdint>

#include "common/tile_range.h"

namespace flashwok::cuda {

// A Q tile of one head of one sequence.
struct WorkItem {
  std::int32_t batch = 0;
  std::int32_t head = 0;
  std::int32_t q_tile = -1;  // -1: there is no more work

  FLASHWOK_HOST_DEVICE bool valid() const { return q_tile >= 0; }
};

// The first row of a Q tile. The last tile ends with the last row, so the first one may begin ahead of
// row 0: under a causal mask it is the one with the fewest keys.
FLASHWOK_HOST_DEVICE constexpr std::int64_t FirstRow(std::int64_t seqlen_q, int tile_q,
                                                     std::int64_t q_tile) {
  return seqlen_q - (CeilDiv(seqlen_q, tile_q) - q_tile) * tile_q;
}

// Head and tile of its rows for every index of [0, total()), fewer than 2^31. With varlen, `head`
// counts heads alone and `q_tile` is a slot that the lengths place.
struct Schedule {
  static constexpr std::int64_t kMaxTotal = std::int64_t{1} << 31;

  std::uint32_t heads = 0;     // batch * num_heads, or num_heads with varlen
  std::uint32_t per_head = 0;  // tiles, or slots
  std::uint32_t section = 1;   // heads

  struct Place {
    std::uint32_t head;
    std::uint32_t q_tile;
  };

  FLASHWOK_HOST_DEVICE constexpr std::uint32_t total() const { return heads * per_head; }

  FLASHWOK_HOST_DEVICE constexpr Place At(std::uint32_t index) const {
    const std::uint32_t first = index / (section * per_head) * section;
    const std::uint32_t width = first + section < heads ? section : heads - first;
    const std::uint32_t within = index - first * per_head;
    return {first + within % width, per_head - 1 - within / width};
  }

  // Slots of all sequences together: every sequence's last tile may be partial.
  static constexpr std::int64_t Slots(std::int64_t total_rows, std::int64_t tile_q,
                                      std::int64_t batch) {
    return total_rows / tile_q + batch;
  }

  // As many heads as have K and V within the share of L2, whole groups of them.
  static constexpr std::int64_t Section(std::int64_t heads, std::int64_t group,
                                        std::int64_t kv_bytes) {
    constexpr std::int64_t kShare = std::int64_t{32} << 20;
    const std::int64_t groups = kv_bytes > 0 ? kShare / kv_bytes : heads;
    const std::int64_t section = (groups > 0 ? groups : 1) * group;
    return section < heads ? section : heads > 0 ? heads : 1;
  }
};

}  // namespace flashwok::cuda
