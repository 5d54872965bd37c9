// The gradient of the bias, dS summed over the axes that the bias broadcasts: a pass of its own
// over the tiles of the bias, which computes their dS again and needs neither locks nor memory for
// it. Per-target guard.
#if defined(FLASHWOK_CPU_BACKWARD_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_BACKWARD_BIAS_INL_H_
#undef FLASHWOK_CPU_BACKWARD_BIAS_INL_H_
#else
#define FLASHWOK_CPU_BACKWARD_BIAS_INL_H_
#endif

#include "cpu/backward-inl.h"
#include "cpu/parallel_for.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// One strip of keys of one (batch, head) of the bias.
class BiasStrip {
 public:
  BiasStrip(const BackwardCall& call, const Tensor& dbias, const Tracer& tracer,
            const BackwardWorktop& top)
      : call_(call), dbias_(dbias), view_(ScoreView::Make(dbias)), tracer_(tracer), top_(top) {}

  void Run(std::int64_t bias_batch, std::int64_t bias_head, std::int64_t k_tile) const {
    const Layout& layout = call_.layout;
    const std::int64_t begin = k_tile * call_.launch.tile_kv;
    const std::int64_t cols = std::min<std::int64_t>(call_.launch.tile_kv, dbias_.shape[3] - begin);
    Zero(bias_batch, bias_head, k_tile, begin, cols);
    const QTiles tiles(layout, call_.launch.tile_q);
    for (std::int64_t b = 0; b < layout.batch; ++b) {
      if (dbias_.shape[0] > 1 && b != bias_batch) continue;
      for (std::int64_t h = 0; h < layout.num_heads; ++h) {
        if (dbias_.shape[1] > 1 && h != bias_head) continue;
        const std::int64_t first = (b * layout.num_heads + h) * tiles.per_head();
        for (std::int64_t t = 0; t < tiles.per_head(); ++t) AddTile(tiles.At(first + t), k_tile);
      }
    }
  }

 private:
  float* Row(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return static_cast<float*>(dbias_.data) + view_.Offset(b, h, i) + j;
  }

  void Zero(std::int64_t bias_batch, std::int64_t bias_head, std::int64_t k_tile,
            std::int64_t begin, std::int64_t cols) const {
    const auto span = tracer_.Store(Role::kDBias, dbias_.shape[2] * cols * 4,
                                    {bias_batch * dbias_.shape[1] + bias_head, -1, k_tile});
    for (std::int64_t i = 0; i < dbias_.shape[2]; ++i) {
      std::fill_n(Row(bias_batch, bias_head, i, begin), cols, 0.0f);
    }
  }

  void AddTile(const QTile& tile, std::int64_t k_tile) const {
    if (tile.rows == 0) return;
    const TileRange range = VisitedTiles(tile.sequence.mask, tile.row_begin,
                                         tile.row_begin + tile.rows, call_.launch.tile_kv);
    if (!range.Contains(k_tile)) return;
    const BackwardVerbs verbs(call_, tracer_, top_);
    const QStage& stage = top_.stages[0];
    const KeyTile keys = MakeKeyTile(tile.sequence, k_tile, call_.launch.tile_kv);
    verbs.LoadKV(tile, keys);
    verbs.LoadQ(tile, keys, stage, 0, tile.rows);
    verbs.LoadLse(tile, keys, stage);
    verbs.ComputeD(tile, keys, stage);
    verbs.ScoreProduct(tile, keys, stage);
    verbs.Probabilities(tile, keys, stage, true);
    verbs.OutputGradientProduct(tile, keys, stage);
    verbs.ScoreGradient(tile, keys, stage);
    AddToDBias(tile, keys);
  }

  // Adds dS to the sum in slow memory: to one row of it where the bias broadcasts the rows.
  void AddToDBias(const QTile& tile, const KeyTile& keys) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const std::int64_t bytes = (dbias_.shape[2] > 1 ? tile.rows : 1) * keys.cols * 4;
    { const auto span = tracer_.Load(Role::kDBias, bytes, place); }
    const auto span = tracer_.Store(Role::kDBias, bytes, place);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      float* sum = Row(tile.batch, tile.head, tile.row_begin + r, keys.begin);
      const float* dS = top_.dP + r * kTileLd;
      for (std::int64_t c = 0; c < keys.cols; ++c) sum[c] += dS[c];
    }
  }

  const BackwardCall& call_;
  const Tensor& dbias_;
  ScoreView view_;
  const Tracer& tracer_;
  const BackwardWorktop& top_;
};

HWY_INLINE void BiasGradient(const BackwardCall& call, const BackwardScratch& scratch,
                             const Gradients& gradients) {
  const Tensor& dbias = gradients.dbias;
  if (!dbias.present()) return;
  const std::int64_t k_tiles = CeilDiv(dbias.shape[3], call.launch.tile_kv);
  ParallelFor(call.launch.num_threads, dbias.shape[0] * dbias.shape[1] * k_tiles,
              [&](int worker, std::int64_t index) {
                const std::int64_t head = index / k_tiles;
                const Tracer tracer(call.launch.observer, worker, call.start);
                BiasStrip(call, dbias, tracer, scratch.tops[worker])
                    .Run(head / dbias.shape[1], head % dbias.shape[1], index % k_tiles);
              });
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
