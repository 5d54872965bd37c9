// The verbs of V3 for bfloat16: tiles stay narrow, as pairs along the depth of their product, and
// the products accumulate in float32. Q keeps its bits, so its scale goes into the scores.
// Per-target guard.
#if defined(FLASHWOK_CPU_FORWARD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_FORWARD_BF16_INL_H_
#undef FLASHWOK_CPU_FORWARD_BF16_INL_H_
#else
#define FLASHWOK_CPU_FORWARD_BF16_INL_H_
#endif

#include "cpu/bf16-inl.h"
#include "cpu/forward-inl.h"
#include "cpu/forward_v3.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

class Bf16Verbs : public ForwardVerbs {
 public:
  Bf16Verbs(const Layout& layout, const Launch& launch, const Tracer& tracer, const WorktopV3& top)
      : ForwardVerbs(layout, launch, tracer, top, 2 * kBf16Block),  // keys are the depth of P V
        products_(*launch.bf16),
        depth_(RoundUp(layout.head_dim, 2 * kBf16Block) / 2),
        cols_(RoundUp(layout.head_dim_v, kBf16Block)),
        P_(Pairs(top.P)),
        finite_(Pairs(top.V_finite)) {
    products_.begin();
  }
  ~Bf16Verbs() { products_.end(); }
  Bf16Verbs(const Bf16Verbs&) = delete;
  Bf16Verbs& operator=(const Bf16Verbs&) = delete;

  bool Clean(const KeyTile& keys, const float* V) const {
    return AllFinitePairs(Pairs(V), keys.padded / 2, cols_);
  }

  void LoadQ(const QTile& tile) const {
    const auto span = tracer_.Load(Role::kQ, tile.rows * layout_.head_dim * 2, Place(tile, -1));
    const auto source = [&](std::int64_t r) {
      return layout_.q.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head);
    };
    LoadPairRows(source, 0, tile.rows, layout_.head_dim, depth_, QueryScale(layout_, tile) < 0.0f,
                 Pairs(top_.Q));
  }
  void LoadKeyColumns(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                      float* target) const {
    const auto source = [&](std::int64_t r) { return Row(layout_.k, tile, keys, r); };
    LoadPairColumns(source, begin, end, keys.cols, layout_.head_dim, depth_, Pairs(target));
  }
  void LoadValueRows(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                     float* target) const {
    const auto source = [&](std::int64_t r) { return Row(layout_.v, tile, keys, r); };
    LoadWovenRows(source, begin, end, keys.cols, layout_.head_dim_v, cols_, Pairs(target));
  }

  void ScoreProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float* KT,
                    float* S) const {
    const auto span = tracer_.Product(Role::kS, 2 * rows.size() * keys.cols * layout_.head_dim,
                                      Place(tile, keys.index));
    products_.gemm(false, rows.size(), keys.padded, depth_, Pairs(top_.Q) + rows.begin * kTileLd,
                   Pairs(KT), S);
  }

  void Scores(const QTile& tile, const KeyTile& keys, const RowRange& rows, bool masked,
              float* S) const {
    if (!PlainScores(layout_)) {
      const float scale = std::abs(QueryScale(layout_, tile));
      for (std::int64_t r = 0; r < rows.size(); ++r) ScaleRow(S + r * kTileLd, keys.padded, scale);
    }
    ForwardVerbs::Scores(tile, keys, rows, masked, S);
  }

  void Softmax(const QTile& tile, const KeyTile& keys, const RowRange& rows, const RowState& state,
               bool masked, float* S) const {
    const float scale = PlainScores(layout_) ? std::abs(QueryScale(layout_, tile)) : 1.0f;
    SoftmaxOf(scale, tile, keys, rows, state, masked, S);
    products_.round(rows.size(), keys.padded, S, P_);
  }

  void ValueProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float*,
                    const float* V, bool clean, float* O) const {
    const auto span = tracer_.Product(Role::kO, 2 * rows.size() * keys.cols * layout_.head_dim_v,
                                      Place(tile, keys.index));
    GemmBf16(products_, Add::kYes, clean, rows.size(), cols_, keys.padded / 2, P_, Pairs(V),
             finite_, O + rows.begin * kTileLd);
  }

 private:
  const char* Row(const RowView& view, const QTile& tile, const KeyTile& keys,
                  std::int64_t r) const {
    return layout_.KeyRow(view, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
  }

  const Bf16Products& products_;
  const std::int64_t depth_;  // of Q K^T, in pairs
  const std::int64_t cols_;   // of O
  Bf16Pair* P_;
  Bf16Pair* finite_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
