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
    {.head_dim = 32,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 4,
     .warps = 4,
     .blocks = 3,
     .full_warps = 8,
     .full_blocks = 1},
    {.head_dim = 64,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 4,
     .warps = 4,
     .blocks = 3,
     .full_warps = 8,
     .full_blocks = 1},
    {.head_dim = 96,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 4,
     .warps = 4,
     .blocks = 2,
     .full_warps = 8,
     .full_blocks = 1},
    {.head_dim = 128,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 3,
     .warps = 4,
     .blocks = 2,
     .full_warps = 8,
     .full_blocks = 1},
    {.head_dim = 192,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 4,
     .warps = 8,
     .blocks = 1,
     .full_warps = 8,
     .full_blocks = 1},
    {.head_dim = 256,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 3,
     .warps = 8,
     .blocks = 1,
     .full_warps = 8,
     .full_blocks = 1},
};

// The row for a head_dim, which is at most the last one's.
constexpr ForwardV2Config ForwardV2ConfigFor(int head_dim) {
  for (const ForwardV2Config& config : kForwardV2Configs) {
    if (head_dim <= config.head_dim) return config;
  }
  return {};
}

}  // namespace flashwok::cuda
