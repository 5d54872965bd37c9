// The verbs of the backward pass of V3 for bfloat16. P and dS are rounded once and serve as
// operands three times: dS as it is for dQ, P and dS as columns for dV and dK. Per-target guard.
#if defined(FLASHWOK_CPU_BACKWARD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_BACKWARD_BF16_INL_H_
#undef FLASHWOK_CPU_BACKWARD_BF16_INL_H_
#else
#define FLASHWOK_CPU_BACKWARD_BF16_INL_H_
#endif

#include "cpu/backward-inl.h"
#include "cpu/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

class Bf16BackwardVerbs : public BackwardVerbs {
 public:
  static constexpr int kKeyBlock = 2 * kBf16Block;  // keys are the depth of dS K

  Bf16BackwardVerbs(const BackwardCall& call, const Tracer& tracer, const BackwardWorktop& top)
      : BackwardVerbs(call, tracer, top),
        products_(*call.launch.bf16),
        depth_(RoundUp(layout_.head_dim, 2 * kBf16Block) / 2),
        depth_v_(RoundUp(layout_.head_dim_v, 2 * kBf16Block) / 2),
        cols_(RoundUp(layout_.head_dim, kBf16Block)),
        cols_v_(RoundUp(layout_.head_dim_v, kBf16Block)) {
    products_.begin();
  }
  ~Bf16BackwardVerbs() { products_.end(); }
  Bf16BackwardVerbs(const Bf16BackwardVerbs&) = delete;
  Bf16BackwardVerbs& operator=(const Bf16BackwardVerbs&) = delete;

  void LoadKV(const QTile& tile, const KeyTile& keys) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const auto k = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.k, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    const auto v = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.v, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    {
      const auto span = tracer_.Load(Role::kK, keys.cols * layout_.head_dim * 2, place);
      LoadPairColumns(k, 0, keys.padded, keys.cols, layout_.head_dim, depth_, Pairs(top_.KT));
      LoadWovenRows(k, 0, keys.padded, keys.cols, layout_.head_dim, cols_, Pairs(top_.K));
    }
    const auto span = tracer_.Load(Role::kV, keys.cols * layout_.head_dim_v * 2, place);
    LoadPairColumns(v, 0, keys.padded, keys.cols, layout_.head_dim_v, depth_v_, Pairs(top_.VT));
  }

  // Rows [begin, end) of Q and dO; with the last row both are woven too.
  void LoadQ(const QTile& tile, const KeyTile& keys, const QStage& stage, std::int64_t begin,
             std::int64_t end) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const std::int64_t row0 = tile.sequence.q_begin + tile.row_begin;
    {
      const auto span = tracer_.Load(Role::kQ, (end - begin) * layout_.head_dim * 2, place);
      LoadPairRows([&](std::int64_t r) { return layout_.q.Row(tile.batch, row0 + r, tile.head); },
                   begin, end, layout_.head_dim, depth_, call_.QScale(tile) < 0.0f, Pairs(stage.Q));
      if (end == tile.rows) Weave(stage.Q, tile.rows, layout_.head_dim, cols_, stage.Q_woven);
    }
    const auto span = tracer_.Load(
        Role::kDO, (end - begin) * layout_.head_dim_v * ItemSize(call_.dout.dtype), place);
    LoadOutputGradient(tile, stage, begin, end);
    if (end == tile.rows) Weave(stage.dO, tile.rows, layout_.head_dim_v, cols_v_, stage.dO_woven);
  }

  void ScoreProduct(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span = Product(Role::kS, tile, keys, layout_.head_dim);
    products_.gemm(false, tile.rows, keys.padded, depth_, Pairs(stage.Q), Pairs(top_.KT), top_.S);
  }
  void OutputGradientProduct(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span = Product(Role::kDP, tile, keys, layout_.head_dim_v);
    products_.gemm(false, tile.rows, keys.padded, depth_v_, Pairs(stage.dO), Pairs(top_.VT),
                   top_.dP);
  }

  void Probabilities(const QTile& tile, const KeyTile& keys, const QStage& stage,
                     bool masked) const {
    float scale = std::abs(call_.QScale(tile));
    if (!PlainScores(layout_)) {
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        ScaleRow(top_.S + r * kTileLd, keys.padded, scale);
      }
      scale = 1.0f;
    }
    ProbabilitiesOf(scale, tile, keys, stage, masked);
  }

  void ValueGradient(const QTile& tile, const KeyTile& keys, const QStage& stage,
                     bool clean) const {
    const auto span = Product(Role::kDV, tile, keys, layout_.head_dim_v);
    Columns(tile, keys, top_.S);
    GemmBf16(products_, Add::kYes, clean, keys.cols, cols_v_, RowPairs(tile), Pairs(top_.PT),
             Pairs(stage.dO_woven), Pairs(top_.finite), top_.dV);
  }
  void KeyGradient(const QTile& tile, const KeyTile& keys, const QStage& stage, bool clean) const {
    const auto span = Product(Role::kDK, tile, keys, layout_.head_dim);
    Columns(tile, keys, top_.dP);
    GemmBf16(products_, Add::kYes, clean, keys.cols, cols_, RowPairs(tile), Pairs(top_.PT),
             Pairs(stage.Q_woven), Pairs(top_.finite), top_.dK);
  }
  void QueryGradient(const QTile& tile, const KeyTile& keys, bool clean) const {
    const auto span = Product(Role::kDQ, tile, keys, layout_.head_dim);
    products_.round(tile.rows, keys.padded, top_.dP, Pairs(top_.operand));
    GemmBf16(products_, Add::kNo, clean, tile.rows, cols_, keys.padded / 2, Pairs(top_.operand),
             Pairs(top_.K), Pairs(top_.finite), top_.dQ);
  }

  // Q came in without its scale.
  void StoreGradients(const QTile& tile, const KeyTile& keys, const RowView& dk,
                      const RowView& dv) const {
    StoreScaled(std::abs(static_cast<float>(layout_.softmax_scale)), tile, keys, dk, dv);
  }

  // Each product looks at its own operand.
  bool Clean(const QTile&, const KeyTile&, const QStage&, bool masked) const { return !masked; }

 private:
  // dO comes in the dtype of O, which may be wider.
  void LoadOutputGradient(const QTile& tile, const QStage& stage, std::int64_t begin,
                          std::int64_t end) const {
    const auto source = [&](std::int64_t r) {
      return call_.dout.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head);
    };
    if (call_.dout.dtype == DType::kBFloat16) {
      LoadPairRows(source, begin, end, layout_.head_dim_v, depth_v_, false, Pairs(stage.dO));
      return;
    }
    alignas(64) float row[kMaxTileCols];  // for `round`, whatever the vectors here
    for (std::int64_t r = begin; r < end; ++r) {
      LoadRow(source(r), call_.dout.dtype, layout_.head_dim_v, 2 * depth_v_, 1.0f, row);
      products_.round(1, 2 * depth_v_, row, Pairs(stage.dO) + r * kTileLd);
    }
  }

  // Rows of a tile as the depth of a product.
  static std::int64_t RowPairs(const QTile& tile) { return RoundUp(tile.rows, 2 * kBf16Block) / 2; }

  static void Weave(const float* tile, std::int64_t rows, std::int64_t n, std::int64_t cols,
                    float* woven) {
    LoadWovenRows([&](std::int64_t r) { return tile + r * kTileLd; }, 0,
                  RoundUp(rows, 2 * kBf16Block), rows, n, cols, Pairs(woven));
  }

  // A tile of P or dS, rounded, as columns: [kTileKV, kTileQ] in pairs.
  void Columns(const QTile& tile, const KeyTile& keys, const float* scores) const {
    const std::int64_t pairs = RowPairs(tile);
    products_.weave(tile.rows, 2 * pairs, keys.padded, scores, Pairs(top_.woven));
    for (std::int64_t p = 0; p < pairs; p += kLanes) {
      StoreTransposed(top_.woven + p * kTileLd, kTileLd, keys.padded, top_.PT + p);
    }
  }

  const Bf16Products& products_;
  const std::int64_t depth_, depth_v_;  // head_dim and head_dim_v in pairs
  const std::int64_t cols_, cols_v_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
