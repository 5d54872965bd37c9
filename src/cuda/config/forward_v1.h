// The tiles of the V1 forward kernel, a row for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here.
#pragma once

namespace flashwok::cuda {

struct ForwardV1Config {
  int head_dim;
  int tile_q, tile_kv;
  int warps;   // each owns tile_kv / warps keys of the KV tile
  int blocks;  // thread blocks that share an SM: bounds the registers
};

// The KV tile is large, the Q tile small: O makes a round trip for each KV tile, and every warp
// leaves a whole float32 O of the Q tile in shared memory.
inline constexpr ForwardV1Config kForwardV1Configs[] = {
    {.head_dim = 64, .tile_q = 32, .tile_kv = 256, .warps = 4, .blocks = 2},
    {.head_dim = 128, .tile_q = 16, .tile_kv = 128, .warps = 4, .blocks = 2},
    {.head_dim = 256, .tile_q = 16, .tile_kv = 64, .warps = 4, .blocks = 1},
};

// The row for a head_dim, which is at most the last one's.
constexpr ForwardV1Config ForwardV1ConfigFor(int head_dim) {
  for (const ForwardV1Config& config : kForwardV1Configs) {
    if (head_dim <= config.head_dim) return config;
  }
  return {};
}

}  // namespace flashwok::cuda
