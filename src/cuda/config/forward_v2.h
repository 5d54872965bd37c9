// The tiles of the V2 forward kernel, a row for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here.
#pragma once

namespace flashwok::cuda {

struct ForwardV2Config {
  int head_dim;
  int tile_q, tile_kv;
  int stages;                   // tiles of K and V in shared memory, taken in turns
  int warps;                    // each owns tile_q / warps rows of the Q tile
  int blocks;                   // thread blocks that share an SM: bounds the registers
  int full_warps, full_blocks;  // the same, where the score stage needs registers too
};

// 32 rows a warp, so that a fragment of K or V serves two products, as long as O leaves registers
// for S; at 192 and 256 O is too wide and a warp has 16. Stages: as many as leave room for
// `blocks` in the 163 KiB of an sm_80.
inline constexpr ForwardV2Config kForwardV2Configs[] = {
    {32, 128, 64, 4, 4, 3, 8, 1},
    {64, 128, 64, 4, 4, 3, 8, 1},
    {96, 128, 64, 4, 4, 2, 8, 1},
    {128, 128, 64, 3, 4, 2, 8, 1},
    {192, 128, 64, 4, 8, 1, 8, 1},
    {256, 128, 64, 3, 8, 1, 8, 1},
};

// The row for a head_dim, which is at most the last one's.
constexpr ForwardV2Config ForwardV2ConfigFor(int head_dim) {
  for (const ForwardV2Config& config : kForwardV2Configs) {
    if (head_dim <= config.head_dim) return config;
  }
  return {};
}

}  // namespace flashwok::cuda
