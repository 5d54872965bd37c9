// What the forward kernels share: the worktop of one worker and the verbs that fill it, each seen
// by the Observer. The kernels themselves are only orderings of these verbs. Per-target guard.
#if defined(FLASHWOK_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_FORWARD_INL_H_
#undef FLASHWOK_CPU_FORWARD_INL_H_
#else
#define FLASHWOK_CPU_FORWARD_INL_H_
#endif

#include "common/tile_range.h"
#include "cpu/score_stage-inl.h"
#include "cpu/tile-inl.h"
#include "cpu/worktop.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Keys [begin, begin + cols) of a sequence.
struct KeyTile {
  std::int64_t index = 0;
  std::int64_t begin = 0;
  std::int64_t cols = 0;    // real keys
  std::int64_t padded = 0;  // up to whole blocks
  int block = kLanes;
};

HWY_INLINE KeyTile MakeKeyTile(const Sequence& sequence, std::int64_t index, int tile_kv,
                               int block = kLanes) {
  KeyTile keys;
  keys.index = index;
  keys.block = block;
  keys.begin = index * tile_kv;
  keys.cols = std::min<std::int64_t>(tile_kv, sequence.seqlen_k - keys.begin);
  keys.padded = RoundUp(keys.cols, block);
  return keys;
}

// The keys of a tile up to the last that one of these rows of the Q tile sees.
HWY_INLINE KeyTile Trim(const QTile& tile, KeyTile keys, const RowRange& rows) {
  const std::int64_t end = tile.sequence.mask.Row(tile.row_begin + rows.end - 1).end;
  keys.cols = std::min(keys.cols, end - keys.begin);
  keys.padded = RoundUp(keys.cols, keys.block);
  return keys;
}

// The verbs of one worker, bound to the problem and its worktop.
class ForwardVerbs {
 public:
  // key_block: keys of a tile are computed up to a multiple of it.
  ForwardVerbs(const Layout& layout, const Launch& launch, const Tracer& tracer,
               const ForwardWorktop& top, int key_block = kLanes)
      : layout_(layout), launch_(launch), tracer_(tracer), top_(top), key_block_(key_block) {}

  KeyTile Keys(const QTile& tile, std::int64_t index) const {
    return MakeKeyTile(tile.sequence, index, launch_.tile_kv, key_block_);
  }

  TileRange Range(const QTile& tile) const { return Range(tile, {0, tile.rows}); }
  TileRange Range(const QTile& tile, const RowRange& rows) const {
    return VisitedTiles(tile.sequence.mask, tile.row_begin + rows.begin, tile.row_begin + rows.end,
                        launch_.tile_kv);
  }

  // Q with its scale, so that scores come out in units of log2 (or of softcap).
  void LoadQ(const QTile& tile) const {
    const auto span = tracer_.Load(
        Role::kQ, tile.rows * layout_.head_dim * ItemSize(layout_.q.dtype), Place(tile, -1));
    const auto source = [&](std::int64_t r) {
      return layout_.q.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head);
    };
    LoadTile(source, layout_.q.dtype, 0, tile.rows, tile.rows, layout_.head_dim,
             QueryScale(layout_, tile), top_.Q);
  }

  void LoadK(const QTile& tile, const KeyTile& keys) const {
    const auto span =
        tracer_.Load(Role::kK, keys.cols * layout_.head_dim * ItemSize(layout_.k.dtype),
                     Place(tile, keys.index));
    LoadKeyColumns(tile, keys, 0, keys.padded, top_.KT);
  }
  void LoadV(const QTile& tile, const KeyTile& keys) const {
    const auto span =
        tracer_.Load(Role::kV, keys.cols * layout_.head_dim_v * ItemSize(layout_.v.dtype),
                     Place(tile, keys.index));
    LoadValueRows(tile, keys, 0, keys.padded, top_.V);
  }
  // Parts of a tile, for a producer that works in small steps.
  void LoadKeyColumns(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                      float* target) const {
    const auto source = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.k, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    LoadTileTransposed(source, layout_.k.dtype, begin, end, keys.cols, layout_.head_dim, target);
  }
  void LoadValueRows(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                     float* target) const {
    const auto source = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.v, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    LoadTile(source, layout_.v.dtype, begin, end, keys.cols, layout_.head_dim_v, 1.0f, target);
  }

  // The rows of the Q tile that see one of these keys, counted from the tile's first.
  RowRange RowsSeeing(const QTile& tile, const KeyTile& keys) const {
    const RowRange rows = tile.sequence.mask.RowsSeeing(
        {keys.begin, keys.begin + keys.cols}, {tile.row_begin, tile.row_begin + tile.rows});
    return {rows.begin - tile.row_begin, rows.end - tile.row_begin};
  }

  // The rows that see a key of the tile, `step` at a time, or in strips where they do not reach its
  // last key; each time with the keys up to the last that one of these rows sees.
  template <typename Body>
  void ForStrips(const QTile& tile, const KeyTile& keys, std::int64_t step,
                 const Body& body) const {
    const RowRange seeing = RowsSeeing(tile, keys);
    for (RowRange rows = seeing; !rows.empty(); rows = {rows.end, seeing.end}) {
      const KeyRange seen = tile.sequence.mask.Row(tile.row_begin + rows.begin);
      const bool cut = seen.end < keys.begin + keys.cols;
      rows.end = std::min(seeing.end, rows.begin + (cut ? std::min(step, kStripRows) : step));
      body(rows, Trim(tile, keys, rows));
    }
  }

  // S = Q K^T for some rows of the Q tile; S holds these rows alone.
  void ScoreProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float* KT,
                    float* S) const {
    const auto span = tracer_.Product(Role::kS, 2 * rows.size() * keys.cols * layout_.head_dim,
                                      Place(tile, keys.index));
    Gemm<Add::kNo>(rows.size(), keys.padded, layout_.head_dim, top_.Q + rows.begin * kTileLd, KT,
                   S);
  }

  // Mask and bias, folded into the score stage.
  void Scores(const QTile& tile, const KeyTile& keys, const RowRange& rows, bool masked,
              float* S) const {
    TraceScoreInputs(tracer_, layout_, rows.size(), keys.cols, Place(tile, keys.index));
    ScoreStage(layout_, tile, keys.begin, keys.cols, keys.padded, rows.begin, rows.size(), masked,
               S);
  }

  // m, P, l, alpha.
  void Softmax(const QTile& tile, const KeyTile& keys, const RowRange& rows, const RowState& state,
               bool masked, float* S) const {
    SoftmaxOf(1.0f, tile, keys, rows, state, masked, S);
  }
  void SoftmaxOf(float scale, const QTile& tile, const KeyTile& keys, const RowRange& rows,
                 const RowState& state, bool masked, float* S) const {
    const auto span = tracer_.Work(EventKind::kSoftmax, Role::kP, Place(tile, keys.index), masked);
    const RowState part{state.row_max + rows.begin, state.row_sum + rows.begin,
                        state.alpha + rows.begin};
    OnlineSoftmax(S, rows.size(), keys.padded, scale, part);
    if (layout_.dropout.active()) {
      DropRows(layout_, tile, keys.begin, keys.padded, rows.begin, rows.size(), S);
    }
  }

  void RescaleO(const QTile& tile, const KeyTile& keys, const RowRange& rows, const RowState& state,
                float* O) const {
    const auto span = tracer_.Work(EventKind::kRescale, Role::kO, Place(tile, keys.index));
    Rescale(O + rows.begin * kTileLd, rows.size(), RoundUp(layout_.head_dim_v, kLanes),
            state.alpha + rows.begin);
  }

  // True when no NaN or infinity stands in V, where it would reach rows that do not see it.
  bool Clean(const KeyTile& keys, const float* V) const {
    return AllFinite(V, keys.padded, RoundUp(layout_.head_dim_v, kLanes));
  }

  // O += P V.
  void ValueProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float* P,
                    const float* V, bool clean, float* O) const {
    const auto span = tracer_.Product(Role::kO, 2 * rows.size() * keys.cols * layout_.head_dim_v,
                                      Place(tile, keys.index));
    float* target = O + rows.begin * kTileLd;
    if (clean) {
      Gemm<Add::kYes>(rows.size(), layout_.head_dim_v, keys.padded, P, V, target);
    } else {
      GemmSkippingZeros(rows.size(), layout_.head_dim_v, keys.padded, P, V, target);
    }
  }

  // O / l once, at the end, and the lse.
  void Finalize(const QTile& tile, const RowView& o, const ScalarView& lse, const float* O,
                const RowState& state) const {
    { const auto span = tracer_.Work(EventKind::kFinalize, Role::kO, Place(tile, -1)); }
    const std::int64_t row0 = tile.sequence.q_begin + tile.row_begin;
    const float descale = layout_.ValueDescale(tile.batch, tile.head_kv);
    {
      const auto span = tracer_.Store(Role::kO, tile.rows * layout_.head_dim_v * ItemSize(o.dtype),
                                      Place(tile, -1));
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        const float sum = state.row_sum[r];
        StoreRow(O + r * kTileLd, layout_.head_dim_v, sum == 0.0f ? 0.0f : descale / sum, o.dtype,
                 o.Row(tile.batch, row0 + r, tile.head));
      }
    }
    if (!lse) return;
    const auto span = tracer_.Store(Role::kLse, tile.rows * 4, Place(tile, -1));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      lse.At(tile.batch, tile.head, row0 + r) = LogSumExp(state.row_max[r], state.row_sum[r]);
    }
  }

  // Tiles of the sequence that this Q tile passes over.
  void TraceSkips(const QTile& tile, const TileRange& range) const {
    if (!tracer_.active()) return;
    const std::int64_t all = CeilDiv(tile.sequence.seqlen_k, launch_.tile_kv);
    for (std::int64_t j = 0; j < all; ++j) {
      if (!range.Contains(j)) tracer_.Work(EventKind::kSkip, Role::kK, Place(tile, j));
    }
  }

  // True when scores of this tile may be hidden: by the interval, a mask or a bias of -inf.
  bool Masked(const TileRange& range, std::int64_t k_tile) const {
    return range.NeedsMask(k_tile) || layout_.mask || layout_.bias;
  }

  const Tracer& tracer() const { return tracer_; }
  static Tracer::Place Place(const QTile& tile, std::int64_t k_tile) {
    return {tile.batch_head, tile.index, k_tile};
  }

 protected:
  const Layout& layout_;
  const Launch& launch_;
  const Tracer& tracer_;
  const ForwardWorktop& top_;
  const int key_block_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
