// The tiles of the V1 forward kernel, a row for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here.
#pragma once

#include <cstdint>

namespace flashwok::cuda {

struct ForwardV1Config {
  int head_dim;
  int tile_q;       // of a team: two warps, each with half of the KV tile's keys
  int full_tile_q;  // the same, where the score stage needs registers too
  int tile_kv;      // of the thread block
  int warps;
  int stages;  // Q tiles of a team in shared memory, taken in turns
  int pieces;  // of a warp's half of O: it goes to the other warp in so many rounds
  int blocks;  // thread blocks that share an SM: bounds the registers
};

// The KV tile takes most of an sm_80's 163 KiB: O makes a round trip to slow memory for each one.
// 32 rows a team, so that a fragment of K or V serves two products, where the registers and what
// shared memory is left allow it. With two pieces they pass through the Q tile, which is done with
// by then; with one they have a place of their own.
inline constexpr ForwardV1Config kForwardV1Configs[] = {
    {.head_dim = 64,
     .tile_q = 32,
     .full_tile_q = 16,
     .tile_kv = 256,
     .warps = 8,
     .stages = 2,
     .pieces = 1,
     .blocks = 1},
    {.head_dim = 128,
     .tile_q = 32,
     .full_tile_q = 16,
     .tile_kv = 256,
     .warps = 8,
     .stages = 1,
     .pieces = 2,
     .blocks = 1},
    {.head_dim = 256,
     .tile_q = 16,
     .full_tile_q = 16,
     .tile_kv = 128,
     .warps = 8,
     .stages = 1,
     .pieces = 2,
     .blocks = 1},
};

// The row for a head_dim, which is at most the last one's.
constexpr ForwardV1Config ForwardV1ConfigFor(int head_dim) {
  for (const ForwardV1Config& config : kForwardV1Configs) {
    if (head_dim <= config.head_dim) return config;
  }
  return {};
}

// Q tiles of a head in slow memory, where O waits in whole tiles: the last one of each of the
// varlen `sequences` (0: not varlen) may be partial.
constexpr std::int64_t ForwardV1Tiles(std::int64_t total_q, std::int64_t tile_q,
                                      std::int64_t sequences) {
  return sequences > 0 ? total_q / tile_q + sequences : (total_q + tile_q - 1) / tile_q;
}

}  // namespace flashwok::cuda
