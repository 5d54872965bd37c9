// The scratch of the kernels whose workers own a Q tile (V2, V3): a worktop a worker and, when the
// workers share the chunks of a tile, the partial results.
#pragma once

#include <vector>

#include "common/tile_range.h"
#include "cpu/worktop.h"

namespace flashwok::cpu {

inline std::int64_t MaxChunks(const Layout& layout, const Launch& launch) {
  return std::max<std::int64_t>(1, CeilDiv(layout.max_seqlen_k, launch.chunk));
}

// (m, l, O) of every (Q tile, chunk) in slow memory.
struct Partials {
  Partials(Arena& arena, std::int64_t count, int tile_q, std::int64_t head_dim_v)
      : tile_q_(tile_q),
        head_dim_v_(head_dim_v),
        O_(arena.Take<float>(count, tile_q, head_dim_v)),
        row_max_(arena.Take<float>(count, tile_q)),
        row_sum_(arena.Take<float>(count, tile_q)) {}

  float* O(std::int64_t index) const { return O_ + index * tile_q_ * head_dim_v_; }
  float* row_max(std::int64_t index) const { return row_max_ + index * tile_q_; }
  float* row_sum(std::int64_t index) const { return row_sum_ + index * tile_q_; }

 private:
  std::int64_t tile_q_;
  std::int64_t head_dim_v_;
  float *O_, *row_max_, *row_sum_;
};

template <typename Worktop>
struct SplitKVScratch {
  SplitKVScratch(Arena& arena, const Layout& layout, const Launch& launch)
      : chunks(launch.split ? MaxChunks(layout, launch) : 1),
        partials(arena, launch.split ? chunks * QTiles(layout, launch.tile_q).count() : 0,
                 launch.tile_q, layout.head_dim_v) {
    for (int worker = 0; worker < launch.num_threads; ++worker) {
      tops.emplace_back(arena, launch, layout.head_dim);
    }
  }

  std::int64_t chunks;
  Partials partials;
  std::vector<Worktop> tops;
};

template <typename Worktop>
std::size_t SplitKVBytes(const Layout& layout, const Launch& launch) {
  Arena arena(nullptr);
  const SplitKVScratch<Worktop> scratch(arena, layout, launch);
  return arena.used();
}

}  // namespace flashwok::cpu
