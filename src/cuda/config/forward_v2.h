// The tiles of the V2 forward kernel, a row for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here.
#pragma once

#include <cstdint>

namespace flashwok::cuda {

// When the warps of a thread block wait for each other: before each item (a tile of K or of V),
// before each K for it and its V, or, for each item, on having been done with the one before last.
enum class Pace : std::uint8_t { kItem, kPair, kDrift };

struct ForwardV2Config {
  int head_dim;
  int tile_q, tile_kv;
  int stages;  // tiles of K and V in shared memory, taken in turns
  int warps;
  int share;   // warps that own the same rows: each takes its part of S's keys and of O's columns
  int blocks;  // thread blocks that share an SM: bounds the registers
  Pace pace = Pace::kItem;
  bool spread = false;  // the next tile's copies start one by one during the product
};

// 32 rows a warp, so that a fragment of K or V serves two products, as long as O leaves registers
// for S; at 192 and 256 O is too wide and a warp has 16. Stages: as many as leave room for
// `blocks` in the 163 KiB of an sm_80.
inline constexpr ForwardV2Config kForwardV2Plain[] = {
    {32, 128, 64, 4, 4, 1, 3},
    {64, 128, 64, 4, 4, 1, 3},
    {96, 128, 64, 4, 4, 1, 2},
    {128, 128, 64, 3, 4, 1, 2},
    {192, 128, 64, 4, 8, 1, 1},
    {256, 128, 64, 3, 8, 1, 1},
};
// The same, where the score stage needs registers too.
inline constexpr ForwardV2Config kForwardV2Full[] = {
    {32, 128, 64, 4, 8, 1, 1},
    {64, 128, 64, 4, 8, 1, 1},
    {96, 128, 64, 4, 8, 1, 1},
    {128, 128, 64, 3, 8, 1, 1},
    {192, 128, 64, 4, 8, 1, 1},
    {256, 128, 64, 3, 8, 1, 1},
};

// The row for a head_dim, which is at most the last one's.
constexpr ForwardV2Config ForwardV2ConfigFor(int head_dim, bool plain = true) {
  for (const ForwardV2Config& config : plain ? kForwardV2Plain : kForwardV2Full) {
    if (head_dim <= config.head_dim) return config;
  }
  return {};
}

}  // namespace flashwok::cuda
