// The tiles of the V1 forward kernel, rows for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here; and for what shared memory a thread block can have.
#pragma once

#include <cstdint>
#include <iterator>

namespace flashwok::cuda {

struct ForwardV1Config {
  int head_dim;
  int shared_kib;   // that the device must give a thread block
  int tile_q;       // of a team: two warps, each with half of the KV tile's keys
  int full_tile_q;  // the same, where the score stage needs registers too
  int tile_kv;      // of the thread block
  int warps;
  int stages;  // Q tiles of a team in shared memory, taken in turns
  int pieces;  // of a warp's half of O: it goes to the other warp in so many rounds
  int blocks;  // thread blocks that share an SM: bounds the registers
};

// The KV tile takes most of the 163 KiB of an sm_80, or the 99 of an sm_86 or sm_89: O makes a round
// trip to slow memory for each one. 32 rows a team, so that a fragment of K or V serves two
// products, where the registers and what shared memory is left allow it. With two pieces they pass
// through the Q tile, which is done with by then; with one they have a place of their own.
inline constexpr ForwardV1Config kForwardV1Configs[] = {
    {64, 163, 32, 16, 256, 8, 2, 1, 1},
    {64, 99, 32, 16, 128, 8, 2, 1, 1},
    {128, 163, 32, 16, 256, 8, 1, 2, 1},
    {128, 99, 32, 16, 128, 8, 1, 2, 1},
    {256, 163, 16, 16, 128, 8, 1, 2, 1},
    {256, 99, 16, 16, 64, 8, 1, 2, 1},
};
inline constexpr int kForwardV1Rows = std::size(kForwardV1Configs);

// The first row for a head_dim on a device, -1 when there is none.
constexpr int ForwardV1Row(std::int64_t head_dim, int shared_kib) {
  for (int row = 0; row < kForwardV1Rows; ++row) {
    const ForwardV1Config& config = kForwardV1Configs[row];
    if (head_dim <= config.head_dim && config.shared_kib <= shared_kib) return row;
  }
  return -1;
}

// Q tiles of a head in slow memory, where O waits in whole tiles: the last one of each of the
// varlen `sequences` (0: not varlen) may be partial.
constexpr std::int64_t ForwardV1Tiles(std::int64_t total_q, std::int64_t tile_q,
                                      std::int64_t sequences) {
  return sequences > 0 ? total_q / tile_q + sequences : (total_q + tile_q - 1) / tile_q;
}

}  // namespace flashwok::cuda
