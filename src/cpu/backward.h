// What the backward kernels keep: the worktop of a worker, D of every row, the accumulator of dQ
// and the turns in which KV tiles add to it.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "common/tile_range.h"
#include "cpu/worktop.h"

namespace flashwok::cpu {

// A Q tile with what the backward pass needs beside it.
struct QStage {
  QStage(Arena& arena, int rows, bool bf16)
      : Q(arena.Tile(rows)),   // [kTileQ, head_dim]
        dO(arena.Tile(rows)),  // [kTileQ, head_dim_v]
        Q_woven(bf16 ? arena.Tile(rows / 2 + 16) : nullptr),
        dO_woven(bf16 ? arena.Tile(rows / 2 + 16) : nullptr),
        row_max(arena.Take<float>(rows)),  // lse, or V1's m; units of log2
        row_sum(arena.Take<float>(rows)),  // 1, or V1's l
        D(arena.Take<float>(rows)) {}
  float *Q, *dO, *Q_woven, *dO_woven, *row_max, *row_sum, *D;
};

struct BackwardWorktop {
  BackwardWorktop(Arena& arena, const Launch& launch, const Layout& layout)
      : stages{QStage(arena, launch.tile_q, launch.bf16 != nullptr),
               QStage(arena, launch.tile_q, launch.bf16 != nullptr)},
        KT(arena.Tile(std::max<std::int64_t>(layout.head_dim, 16))),    // [head_dim, kTileKV]
        VT(arena.Tile(std::max<std::int64_t>(layout.head_dim_v, 16))),  // [head_dim_v, kTileKV]
        K(arena.Tile(launch.tile_kv)),                                  // [kTileKV, head_dim]
        dK(arena.Tile(launch.tile_kv)),                                 // [kTileKV, head_dim]
        dV(arena.Tile(launch.tile_kv)),                                 // [kTileKV, head_dim_v]
        S(arena.Tile(launch.tile_q)),   // [kTileQ, kTileKV], then P in place
        dP(arena.Tile(launch.tile_q)),  // [kTileQ, kTileKV], then dS in place
        T(arena.Tile(launch.tile_q)),   // [kTileQ, kTileKV], tanh of the softcap
        dQ(arena.Tile(launch.tile_q)),  // [kTileQ, head_dim], one tile's part
        operand(TakeBf16(arena, launch, launch.tile_q)),
        woven(TakeBf16(arena, launch, launch.tile_q / 2 + 16)),
        PT(TakeBf16(arena, launch, launch.tile_kv)),
        finite(TakeBf16(arena, launch, std::max(launch.tile_kv, launch.tile_q) / 2 + 16)) {}

  QStage stages[2];
  float *KT, *VT, *K, *dK, *dV, *S, *dP, *T, *dQ;
  // Of bfloat16 products: dS, P or dS woven, either of them as columns, and a tile made finite.
  float *operand, *woven, *PT, *finite;

 private:
  static float* TakeBf16(Arena& arena, const Launch& launch, std::int64_t rows) {
    return launch.bf16 == nullptr ? nullptr : arena.Tile(rows);
  }
};

struct BackwardScratch {
  BackwardScratch(Arena& arena, const Layout& layout, const Launch& launch)
      : q_tiles(QTiles(layout, launch.tile_q).per_head()) {
    const std::int64_t heads = layout.batch * layout.num_heads;
    rows = q_tiles * launch.tile_q;
    D = arena.Take<float>(heads, rows);
    turns = arena.Take<std::atomic<std::int32_t>>(heads, q_tiles);
    if (layout.q.dtype != DType::kFloat32) dQ = arena.Take<float>(heads, rows, layout.head_dim);
    for (int worker = 0; worker < launch.num_threads; ++worker) {
      tops.emplace_back(arena, launch, layout);
    }
  }

  std::int64_t q_tiles;  // of a head
  std::int64_t rows = 0;
  float* D = nullptr;
  std::atomic<std::int32_t>* turns = nullptr;
  float* dQ = nullptr;  // float32 sums of a narrow dQ
  std::vector<BackwardWorktop> tops;
};

// Where dQ is summed, and in which order: the KV tiles that visit a Q tile add to it one after the
// other, so that the bits do not depend on the workers. Workers take KV tiles in ascending order,
// so each waits at most for one that is under way.
class DQAccumulator {
 public:
  DQAccumulator(const Layout& layout, const BackwardScratch& scratch, const Tensor& dq)
      : layout_(layout), scratch_(scratch), dq_(RowView::Make(dq)) {}

  bool in_place() const { return scratch_.dQ == nullptr; }
  float* Row(const QTile& tile, std::int64_t r) const {
    if (in_place()) {
      return reinterpret_cast<float*>(
          dq_.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head));
    }
    return scratch_.dQ + (tile.batch_head * scratch_.rows + tile.row_begin + r) * layout_.head_dim;
  }
  void Reset(const QTile& tile) const {
    new (&Turn(tile)) std::atomic<std::int32_t>(0);
    for (std::int64_t r = 0; r < tile.rows; ++r) std::fill_n(Row(tile, r), layout_.head_dim, 0.0f);
  }
  void AwaitTurn(const QTile& tile, std::int64_t turn) const {
    while (Turn(tile).load(std::memory_order_acquire) != turn) std::this_thread::yield();
  }
  void PassTurn(const QTile& tile) const { Turn(tile).fetch_add(1, std::memory_order_release); }
  const RowView& output() const { return dq_; }

 private:
  std::atomic<std::int32_t>& Turn(const QTile& tile) const {
    return scratch_.turns[tile.batch_head * scratch_.q_tiles + tile.index];
  }
  const Layout& layout_;
  const BackwardScratch& scratch_;
  RowView dq_;
};

}  // namespace flashwok::cpu
