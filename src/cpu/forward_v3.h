// V3's worktop: two stages of K and V tiles, so that one fills while the other is used.
#pragma once

#include "cpu/worktop.h"

namespace flashwok::cpu {

inline constexpr std::int64_t kConsumerRows = 48;

struct StageV3 {
  float* KT;  // [head_dim, kTileKV]
  float* V;   // [kTileKV, head_dim_v]
};

struct WorktopV3 : ForwardWorktop {
  WorktopV3(Arena& arena, const Launch& launch, std::int64_t head_dim)
      : ForwardWorktop(arena, launch, head_dim, kConsumerRows),
        stages{{KT, V}, {arena.Tile(head_dim), arena.Tile(launch.tile_kv)}} {}

  StageV3 stages[2];
};

}  // namespace flashwok::cpu
