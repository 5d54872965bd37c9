// V3's worktop: two stages of K and V tiles, so that one fills while the other is used.
#pragma once

#include "cpu/worktop.h"

namespace flashwok::cpu {

// Rows of a consumer's block, few enough that their scores stay near.
inline constexpr std::int64_t kBlockRows = 96;
inline constexpr std::int64_t kBf16BlockRows = 32;
inline std::int64_t BlockRows(const Launch& launch) {
  return launch.bf16 == nullptr ? kBlockRows : kBf16BlockRows;
}

struct StageV3 {
  float* KT;  // [head_dim, kTileKV]
  float* V;   // [kTileKV, head_dim_v]
};

// bfloat16 tiles hold pairs, and a whole number of 16 of them along the depth.
struct WorktopV3 : ForwardWorktop {
  WorktopV3(Arena& arena, const Launch& launch, std::int64_t head_dim)
      : ForwardWorktop(arena, launch, std::max<std::int64_t>(head_dim, 16), BlockRows(launch)),
        P(launch.bf16 == nullptr ? S : arena.Tile(kBf16BlockRows)),
        V_finite(launch.bf16 == nullptr ? V : arena.Tile(launch.tile_kv / 2)),
        stages{{KT, V},
               {arena.Tile(std::max<std::int64_t>(head_dim, 16)), arena.Tile(launch.tile_kv)}} {}

  float* P;         // [kBf16BlockRows, kTileKV]
  float* V_finite;  // V with zeros for what is not finite
  StageV3 stages[2];
};

}  // namespace flashwok::cpu
