// Flash Attention V1 (Dao et al. 2022, Algorithm 1): KV outer, Q inner. Against standard attention:
//   - S and P exist only as a tile on the worktop: slow memory holds O, m and l instead;
//   - online softmax: each pass brings O, m, l of a Q tile in, corrects them, and takes them back,
//     O divided by l every time;
//   - one worker owns a head.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_v1.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/forward-inl.h"
#include "cpu/forward_v1.h"
#include "cpu/kernels.h"
#include "cpu/parallel_for.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

class HeadV1 {
 public:
  HeadV1(const Layout& layout, const Launch& launch, const Tracer& tracer, const V1Memory& memory,
         const ForwardWorktop& top)
      : layout_(layout),
        tracer_(tracer),
        memory_(memory),
        top_(top),
        verbs_(layout, launch, tracer, top),
        tile_kv_(launch.tile_kv),
        cols_(RoundUp(layout.head_dim_v, kLanes)) {}

  void Run(const QTiles& tiles, std::int64_t batch_head) const {
    if (tiles.per_head() == 0) return;
    const std::int64_t first = batch_head * tiles.per_head();
    for (std::int64_t t = 0; t < tiles.per_head(); ++t) {  // O = 0, l = 0, m = -inf
      const QTile tile = tiles.At(first + t);
      ResetState(top_.state, tile.rows);
      for (std::int64_t r = 0; r < tile.rows; ++r) std::fill_n(top_.O + r * kTileLd, cols_, 0.0f);
      if (tile.rows > 0) StoreState(tile, -1);
    }
    const QTile any = tiles.At(first);
    const std::int64_t k_tiles = CeilDiv(any.sequence.seqlen_k, tile_kv_);
    for (std::int64_t j = 0; j < k_tiles; ++j) {
      const KeyTile keys = MakeKeyTile(any.sequence, j, static_cast<int>(tile_kv_));
      bool loaded = false;
      for (std::int64_t t = 0; t < tiles.per_head(); ++t) {
        const QTile tile = tiles.At(first + t);
        if (tile.rows == 0) continue;
        const TileRange range = verbs_.Range(tile);
        if (!range.Contains(j)) {
          tracer_.Work(EventKind::kSkip, Role::kK, ForwardVerbs::Place(tile, j));
          continue;
        }
        if (!loaded) {
          verbs_.LoadK(tile, keys);
          verbs_.LoadV(tile, keys);
          loaded = true;
        }
        Step(tile, keys, verbs_.Masked(range, j));
      }
    }
  }

 private:
  void Step(const QTile& tile, const KeyTile& keys, bool masked) const {
    verbs_.LoadQ(tile);
    LoadState(tile, keys.index);
    const RowRange rows{0, tile.rows};
    verbs_.ScoreProduct(tile, keys, rows, top_.KT, top_.S);  // S = Q K^T
    verbs_.Scores(tile, keys, rows, masked, top_.S);
    float* old_sum = top_.state_part.row_sum;
    std::copy_n(top_.state.row_sum, tile.rows, old_sum);
    verbs_.Softmax(tile, keys, rows, top_.state, masked, top_.S);  // m, P, l
    for (std::int64_t r = 0; r < tile.rows; ++r) top_.state.alpha[r] *= old_sum[r];
    verbs_.RescaleO(tile, keys, rows, top_.state, top_.O);  // O *= l_old * alpha
    const bool clean = !masked || verbs_.Clean(keys, top_.V);
    verbs_.ValueProduct(tile, keys, rows, top_.S, top_.V, clean, top_.O);  // O += P V
    {
      const auto span =
          tracer_.Work(EventKind::kFinalize, Role::kO, ForwardVerbs::Place(tile, keys.index));
      for (std::int64_t r = 0; r < tile.rows; ++r) {  // O /= l_new
        const float sum = top_.state.row_sum[r];
        ScaleRow(top_.O + r * kTileLd, cols_, sum == 0.0f ? 0.0f : 1.0f / sum);
      }
    }
    StoreState(tile, keys.index);
  }

  void LoadState(const QTile& tile, std::int64_t k_tile) const {
    const auto place = ForwardVerbs::Place(tile, k_tile);
    {
      const auto span = tracer_.Load(Role::kO, tile.rows * layout_.head_dim_v * 4, place);
      const auto source = [&](std::int64_t r) { return memory_.O(tile, r); };
      LoadTile(source, DType::kFloat32, 0, tile.rows, tile.rows, layout_.head_dim_v, 1.0f, top_.O);
    }
    {
      const auto span = tracer_.Load(Role::kRowMax, tile.rows * 4, place);
      std::copy_n(memory_.row_max(tile), tile.rows, top_.state.row_max);
    }
    const auto span = tracer_.Load(Role::kRowSum, tile.rows * 4, place);
    std::copy_n(memory_.row_sum(tile), tile.rows, top_.state.row_sum);
  }

  void StoreState(const QTile& tile, std::int64_t k_tile) const {
    const auto place = ForwardVerbs::Place(tile, k_tile);
    {
      const auto span = tracer_.Store(Role::kO, tile.rows * layout_.head_dim_v * 4, place);
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        std::copy_n(top_.O + r * kTileLd, layout_.head_dim_v, memory_.O(tile, r));
      }
    }
    {
      const auto span = tracer_.Store(Role::kRowMax, tile.rows * 4, place);
      std::copy_n(top_.state.row_max, tile.rows, memory_.row_max(tile));
    }
    const auto span = tracer_.Store(Role::kRowSum, tile.rows * 4, place);
    std::copy_n(top_.state.row_sum, tile.rows, memory_.row_sum(tile));
  }

  const Layout& layout_;
  const Tracer& tracer_;
  const V1Memory& memory_;
  const ForwardWorktop& top_;
  ForwardVerbs verbs_;
  std::int64_t tile_kv_;
  std::int64_t cols_;
};

// What slow memory holds at the end, as the caller wants it: O in its dtype, lse, m and l.
void WriteResults(const Layout& layout, const ForwardOutput& output, const Tracer& tracer,
                  const V1Memory& memory, const QTile& tile) {
  const RowView o = RowView::Make(output.o);
  const ScalarView lse = ScalarView::Make(output.lse);
  const ScalarView row_max = ScalarView::Make(output.row_max);
  const ScalarView row_sum = ScalarView::Make(output.row_sum);
  const std::int64_t row0 = tile.sequence.q_begin + tile.row_begin;
  const auto place = ForwardVerbs::Place(tile, -1);
  if (!memory.in_place()) {
    tracer.Load(Role::kO, tile.rows * layout.head_dim_v * 4, place);
    tracer.Store(Role::kO, tile.rows * layout.head_dim_v * ItemSize(o.dtype), place);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < layout.head_dim_v; ++c) {
        StoreFromFloat(o.Row(tile.batch, row0 + r, tile.head), o.dtype, c, memory.O(tile, r)[c]);
      }
    }
  }
  if (!lse && !row_max) return;
  const std::int64_t bytes = tile.rows * 4;
  tracer.Load(Role::kRowMax, bytes, place);
  tracer.Load(Role::kRowSum, bytes, place);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float m = memory.row_max(tile)[r];
    const float l = memory.row_sum(tile)[r];
    if (lse) lse.At(tile.batch, tile.head, row0 + r) = LogSumExp(m, l);
    if (row_max) row_max.At(tile.batch, tile.head, row0 + r) = m * kLn2;
    if (row_sum) row_sum.At(tile.batch, tile.head, row0 + r) = l;
  }
  if (lse) tracer.Store(Role::kLse, bytes, place);
  if (row_max) tracer.Store(Role::kRowMax, bytes, place);
  if (row_sum) tracer.Store(Role::kRowSum, bytes, place);
}

void ForwardV1(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  Arena arena(launch.workspace);
  const V1Scratch scratch(arena, layout, launch);
  const V1Memory memory(layout, launch, scratch, output.o);
  const QTiles tiles(layout, launch.tile_q);
  const auto start = std::chrono::steady_clock::now();
  ParallelFor(launch.num_threads, layout.batch * layout.num_heads,
              [&](int worker, std::int64_t batch_head) {
                const Tracer tracer(launch.observer, worker, start);
                HeadV1(layout, launch, tracer, memory, scratch.tops[worker]).Run(tiles, batch_head);
                for (std::int64_t t = 0; t < tiles.per_head(); ++t) {
                  const QTile tile = tiles.At(batch_head * tiles.per_head() + t);
                  if (tile.rows > 0) WriteResults(layout, output, tracer, memory, tile);
                }
              });
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(ForwardV1);

void ForwardV1(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(ForwardV1)(problem, output, launch);
}

std::size_t ForwardV1Bytes(const Problem& problem, const Launch& launch) {
  Arena arena(nullptr);
  const V1Scratch scratch(arena, Layout(problem), launch);
  return arena.used();
}

}  // namespace flashwok::cpu
#endif
