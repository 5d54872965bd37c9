// What standard attention keeps in slow memory: whole score matrices of every head.
#pragma once

#include <vector>

#include "cpu/worktop.h"

namespace flashwok::cpu {

struct StandardScratch {
  // `matrices`: 2 forward (S, P), 4 backward (S, P, dP, dS).
  StandardScratch(Arena& arena, const Layout& layout, const Launch& launch, int matrices) {
    ld = (layout.max_seqlen_k + kRowAlign - 1) / kRowAlign * kRowAlign;
    rows = layout.max_seqlen_q;
    tile_q = launch.tile_q;
    const std::int64_t all_rows = layout.batch * layout.num_heads * rows;
    S = arena.Take<float>(all_rows, ld);
    P = arena.Take<float>(all_rows, ld);
    if (matrices == 4) {
      dP = arena.Take<float>(all_rows, ld);
      dS = arena.Take<float>(all_rows, ld);
    }
    for (int worker = 0; worker < launch.num_threads; ++worker) {
      tops.emplace_back(arena, launch, layout.head_dim);
    }
  }

  float* Row(float* matrix, std::int64_t batch_head, std::int64_t i) const {
    return matrix + (batch_head * rows + i) * ld;
  }
  float* Row(float* matrix, const QTile& tile, std::int64_t r) const {
    return Row(matrix, tile.batch_head, tile.index * tile_q + r);
  }

  static constexpr std::int64_t kRowAlign = 16;  // floats: whole vectors of every instruction set
  std::int64_t rows = 0, ld = 0, tile_q = 0;
  float *S = nullptr, *P = nullptr, *dP = nullptr, *dS = nullptr;
  std::vector<ForwardWorktop> tops;
};

}  // namespace flashwok::cpu
