// What V1 keeps in slow memory: O, m and l of every row, brought in and taken back at each KV tile.
#pragma once

#include <vector>

#include "cpu/worktop.h"

namespace flashwok::cpu {

struct V1Scratch {
  V1Scratch(Arena& arena, const Layout& layout, const Launch& launch)
      : padded_rows(QTiles(layout, launch.tile_q).per_head() * launch.tile_q) {
    const std::int64_t rows = layout.batch * layout.num_heads * padded_rows;
    row_max = arena.Take<float>(rows);
    row_sum = arena.Take<float>(rows);
    // Narrow outputs would lose precision at each round trip: those accumulate here.
    if (layout.q.dtype != DType::kFloat32) O = arena.Take<float>(rows, layout.head_dim_v);
    for (int worker = 0; worker < launch.num_threads; ++worker) {
      tops.emplace_back(arena, launch, layout.head_dim);
    }
  }

  std::int64_t padded_rows;  // of a head
  float* row_max = nullptr;
  float* row_sum = nullptr;
  float* O = nullptr;
  std::vector<ForwardWorktop> tops;
};

class V1Memory {
 public:
  V1Memory(const Layout& layout, const Launch& launch, const V1Scratch& scratch,
           const Tensor& output)
      : head_dim_v_(layout.head_dim_v),
        padded_rows_(scratch.padded_rows),
        tile_q_(launch.tile_q),
        scratch_(scratch),
        in_place_(layout.q.dtype == DType::kFloat32),
        o_(RowView::Make(output)) {}

  bool in_place() const { return in_place_; }
  float* O(const QTile& tile, std::int64_t r) const {
    if (in_place_) {
      return reinterpret_cast<float*>(
          o_.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head));
    }
    return scratch_.O + (Index(tile) + r) * head_dim_v_;
  }
  float* row_max(const QTile& tile) const { return scratch_.row_max + Index(tile); }
  float* row_sum(const QTile& tile) const { return scratch_.row_sum + Index(tile); }

 private:
  std::int64_t Index(const QTile& tile) const {
    return tile.batch_head * padded_rows_ + tile.index * tile_q_;
  }
  std::int64_t head_dim_v_, padded_rows_, tile_q_;
  const V1Scratch& scratch_;
  bool in_place_;
  RowView o_;
};

}  // namespace flashwok::cpu
