// Standard attention: three passes, each over all heads, between which S and P go out to slow
// memory and come back:  S = Q K^T;  P = softmax(mask(S));  O = P V.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_standard.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/forward-inl.h"
#include "cpu/kernels.h"
#include "cpu/parallel_for.h"
#include "cpu/standard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

class StandardForward {
 public:
  StandardForward(const Layout& layout, const ForwardOutput& output, const Launch& launch,
                  const StandardScratch& scratch)
      : layout_(layout), output_(output), launch_(launch), scratch_(scratch) {}

  // S = Q K^T.
  void Scores(const Tracer& tracer, const QTile& tile, const ForwardWorktop& top) const {
    const ForwardVerbs verbs(layout_, launch_, tracer, top);
    verbs.LoadQ(tile);
    for (std::int64_t j = 0; j < KeyTiles(tile); ++j) {
      const KeyTile keys = MakeKeyTile(tile.sequence, j, launch_.tile_kv);
      verbs.LoadK(tile, keys);
      verbs.ScoreProduct(tile, keys, {0, tile.rows}, top.KT, top.S);
      StoreScores(tracer, Role::kS, tile, keys, top.S, scratch_.S);
    }
  }

  // P = softmax(S), a row at a time.
  void Softmax(const Tracer& tracer, const QTile& tile) const {
    const ScalarView lse = ScalarView::Make(output_.lse);
    const std::int64_t cols = tile.sequence.seqlen_k;
    const auto place = ForwardVerbs::Place(tile, -1);
    tracer.Load(Role::kS, tile.rows * cols * 4, place);
    TraceScoreInputs(tracer, layout_, tile.rows, cols, place);
    {
      const auto span = tracer.Work(EventKind::kSoftmax, Role::kP, place);
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        float m = kMinusInf, l = 0.0f, alpha = 0.0f;
        float* P = scratch_.Row(scratch_.P, tile, r);
        std::copy_n(scratch_.Row(scratch_.S, tile, r), RoundUp(cols, kLanes), P);
        const RowState state{&m, &l, &alpha};
        SoftmaxRow(layout_, tile, r, state, P);
        if (!lse) continue;
        lse.At(tile.batch, tile.head, tile.sequence.q_begin + tile.row_begin + r) = LogSumExp(m, l);
      }
    }
    tracer.Store(Role::kP, tile.rows * cols * 4, place);
    if (lse) tracer.Store(Role::kLse, tile.rows * 4, place);
  }

  // O = P V.
  void Output(const Tracer& tracer, const QTile& tile, const ForwardWorktop& top) const {
    const ForwardVerbs verbs(layout_, launch_, tracer, top);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::fill_n(top.O + r * kTileLd, RoundUp(layout_.head_dim_v, kLanes), 0.0f);
    }
    std::fill_n(top.state.row_sum, tile.rows, 1.0f);
    for (std::int64_t j = 0; j < KeyTiles(tile); ++j) {
      const KeyTile keys = MakeKeyTile(tile.sequence, j, launch_.tile_kv);
      LoadScores(tracer, Role::kP, tile, keys, scratch_.P, top.S);
      verbs.LoadV(tile, keys);
      verbs.ValueProduct(tile, keys, {0, tile.rows}, top.S, top.V, verbs.Clean(keys, top.V), top.O);
    }
    verbs.Finalize(tile, RowView::Make(output_.o), {}, top.O, top.state);
  }

 private:
  std::int64_t KeyTiles(const QTile& tile) const {
    return CeilDiv(tile.sequence.seqlen_k, launch_.tile_kv);
  }
  void StoreScores(const Tracer& tracer, Role role, const QTile& tile, const KeyTile& keys,
                   const float* from, float* matrix) const {
    const auto span =
        tracer.Store(role, tile.rows * keys.cols * 4, ForwardVerbs::Place(tile, keys.index));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(from + r * kTileLd, keys.padded, scratch_.Row(matrix, tile, r) + keys.begin);
    }
  }
  void LoadScores(const Tracer& tracer, Role role, const QTile& tile, const KeyTile& keys,
                  float* matrix, float* to) const {
    const auto span =
        tracer.Load(role, tile.rows * keys.cols * 4, ForwardVerbs::Place(tile, keys.index));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(scratch_.Row(matrix, tile, r) + keys.begin, keys.padded, to + r * kTileLd);
    }
  }

  const Layout& layout_;
  const ForwardOutput& output_;
  const Launch& launch_;
  const StandardScratch& scratch_;
};

void ForwardStandard(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  Arena arena(launch.workspace);
  const StandardScratch scratch(arena, layout, launch, 2);
  const StandardForward kernel(layout, output, launch, scratch);
  const auto start = std::chrono::steady_clock::now();
  const auto pass = [&](const auto& body) {
    const QTiles tiles(layout, launch.tile_q);
    ParallelFor(launch.num_threads, tiles.count(), [&](int worker, std::int64_t index) {
      const QTile tile = tiles.At(index);
      if (tile.rows > 0) body(Tracer(launch.observer, worker, start), tile, scratch.tops[worker]);
    });
  };
  pass([&](const Tracer& tracer, const QTile& tile, const ForwardWorktop& top) {
    kernel.Scores(tracer, tile, top);
  });
  pass([&](const Tracer& tracer, const QTile& tile, const ForwardWorktop&) {
    kernel.Softmax(tracer, tile);
  });
  pass([&](const Tracer& tracer, const QTile& tile, const ForwardWorktop& top) {
    kernel.Output(tracer, tile, top);
  });
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(ForwardStandard);

void ForwardStandard(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(ForwardStandard)(problem, output, launch);
}

std::size_t ForwardStandardBytes(const Problem& problem, const Launch& launch) {
  Arena arena(nullptr);
  const StandardScratch scratch(arena, Layout(problem), launch, 2);
  return arena.used();
}

}  // namespace flashwok::cpu
#endif
