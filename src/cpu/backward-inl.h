// The verbs of the backward kernels: recompute P from the row statistics, dP, dS, and the three
// products that make dQ, dK and dV (FA1 Algorithm 4, FA2 Algorithm 2). Per-target guard.
#if defined(FLASHWOK_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_BACKWARD_INL_H_
#undef FLASHWOK_CPU_BACKWARD_INL_H_
#else
#define FLASHWOK_CPU_BACKWARD_INL_H_
#endif

#include "cpu/backward.h"
#include "cpu/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// What a backward call works with.
struct BackwardCall {
  const Layout& layout;
  const Launch& launch;
  RowView o, dout;
  ScalarView lse, dlse, row_max, row_sum;
  // One clock for all passes of the call.
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  BackwardCall(const Layout& call_layout, const BackwardInput& input, const Launch& call_launch)
      : layout(call_layout),
        launch(call_launch),
        o(RowView::Make(input.o)),
        dout(RowView::Make(input.dout)),
        lse(ScalarView::Make(input.lse)),
        dlse(ScalarView::Make(input.dlse)),
        row_max(ScalarView::Make(input.row_max)),
        row_sum(ScalarView::Make(input.row_sum)) {}

  float QScale(const QTile& tile) const { return QueryScale(layout, tile); }
  // dK comes out of the product with the scaled Q: this takes it to softmax_scale * dS^T Q.
  float KeyScale() const {
    return layout.softcap > 0.0 ? static_cast<float>(layout.softcap) : kLn2;
  }
};

// D = rowsum(dO * O) - dlse of one row.
HWY_INLINE float RowDot(const BackwardCall& call, const QTile& tile, std::int64_t r) {
  const std::int64_t row = tile.sequence.q_begin + tile.row_begin + r;
  const char* o = call.o.Row(tile.batch, row, tile.head);
  const char* dout = call.dout.Row(tile.batch, row, tile.head);
  HWY_ALIGN float left[kMaxTileCols];
  HWY_ALIGN float right[kMaxTileCols];
  const std::int64_t padded = RoundUp(call.layout.head_dim_v, kLanes);
  LoadRow(o, call.o.dtype, call.layout.head_dim_v, padded, 1.0f, left);
  LoadRow(dout, call.dout.dtype, call.layout.head_dim_v, padded, 1.0f, right);
  const F32 d;
  auto sum = hn::Zero(d);
  for (std::int64_t c = 0; c < padded; c += kLanes) {
    sum = hn::MulAdd(hn::Load(d, left + c), hn::Load(d, right + c), sum);
  }
  const float dot = hn::GetLane(hn::SumOfLanes(d, sum));
  return call.dlse ? dot - call.dlse.At(tile.batch, tile.head, row) : dot;
}

class BackwardVerbs {
 public:
  static constexpr int kKeyBlock = kLanes;

  BackwardVerbs(const BackwardCall& call, const Tracer& tracer, const BackwardWorktop& top)
      : call_(call), layout_(call.layout), tracer_(tracer), top_(top) {}

  void LoadKV(const QTile& tile, const KeyTile& keys) const {
    LoadK(tile, keys);
    LoadV(tile, keys);
  }
  // K as columns for S and as rows for dQ.
  void LoadK(const QTile& tile, const KeyTile& keys) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const auto k = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.k, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    const auto span =
        tracer_.Load(Role::kK, keys.cols * layout_.head_dim * ItemSize(layout_.k.dtype), place);
    LoadTileTransposed(k, layout_.k.dtype, 0, keys.padded, keys.cols, layout_.head_dim, top_.KT);
    LoadTile(k, layout_.k.dtype, 0, keys.padded, keys.cols, layout_.head_dim, 1.0f, top_.K);
  }
  // V as columns for dP.
  void LoadV(const QTile& tile, const KeyTile& keys) const {
    const auto v = [&](std::int64_t r) {
      return layout_.KeyRow(layout_.v, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
    };
    const auto span =
        tracer_.Load(Role::kV, keys.cols * layout_.head_dim_v * ItemSize(layout_.v.dtype),
                     ForwardVerbs::Place(tile, keys.index));
    LoadTileTransposed(v, layout_.v.dtype, 0, keys.padded, keys.cols, layout_.head_dim_v, top_.VT);
  }

  // Rows [begin, end) of Q, scaled, and of dO.
  void LoadQ(const QTile& tile, const KeyTile& keys, const QStage& stage, std::int64_t begin,
             std::int64_t end) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const std::int64_t row0 = tile.sequence.q_begin + tile.row_begin;
    {
      const auto span = tracer_.Load(
          Role::kQ, (end - begin) * layout_.head_dim * ItemSize(layout_.q.dtype), place);
      LoadTile([&](std::int64_t r) { return layout_.q.Row(tile.batch, row0 + r, tile.head); },
               layout_.q.dtype, begin, end, tile.rows, layout_.head_dim, call_.QScale(tile),
               stage.Q);
    }
    const auto span = tracer_.Load(
        Role::kDO, (end - begin) * layout_.head_dim_v * ItemSize(call_.dout.dtype), place);
    LoadTile([&](std::int64_t r) { return call_.dout.Row(tile.batch, row0 + r, tile.head); },
             call_.dout.dtype, begin, end, tile.rows, layout_.head_dim_v, 1.0f, stage.dO);
  }

  // The row statistics from lse, which holds m and l in one number.
  void LoadLse(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span =
        tracer_.Load(Role::kLse, tile.rows * 4, ForwardVerbs::Place(tile, keys.index));
    const std::int64_t row0 = tile.sequence.q_begin + tile.row_begin;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      stage.row_max[r] = call_.lse.At(tile.batch, tile.head, row0 + r) * kLog2E;
      stage.row_sum[r] = 1.0f;
    }
  }

  // D = rowsum(dO * O) - dlse, with the dO that came in beside Q.
  void ComputeD(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    if (call_.dlse) tracer_.Load(Role::kDLse, tile.rows * 4, place);
    const auto span =
        tracer_.Load(Role::kO, tile.rows * layout_.head_dim_v * ItemSize(call_.o.dtype), place);
    for (std::int64_t r = 0; r < tile.rows; ++r) stage.D[r] = RowDot(call_, tile, r);
  }

  // S = Q K^T.
  void ScoreProduct(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span = Product(Role::kS, tile, keys, layout_.head_dim);
    Gemm<Add::kNo>(tile.rows, keys.padded, layout_.head_dim, stage.Q, top_.KT, top_.S);
  }

  // P = exp2(S - m) / l, with the score stage of the forward pass before it.
  void Probabilities(const QTile& tile, const KeyTile& keys, const QStage& stage,
                     bool masked) const {
    ProbabilitiesOf(1.0f, tile, keys, stage, masked);
  }
  // Of scale * S; scale > 0.
  void ProbabilitiesOf(float scale, const QTile& tile, const KeyTile& keys, const QStage& stage,
                       bool masked) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    TraceScoreInputs(tracer_, layout_, tile.rows, keys.cols, place);
    const auto span = tracer_.Work(EventKind::kSoftmax, Role::kP, place, masked);
    if (layout_.softcap > 0.0) KeepTanh(tile, keys);
    ScoreStage(layout_, tile, keys.begin, keys.cols, keys.padded, 0, tile.rows, masked, top_.S);
    const F32 d;
    const auto factor = hn::Set(d, scale);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const auto max = hn::Set(d, SafeMax(stage.row_max[r]));
      const auto inverse = hn::Set(d, stage.row_sum[r] == 0.0f ? 0.0f : 1.0f / stage.row_sum[r]);
      float* row = top_.S + r * kTileLd;
      for (std::int64_t c = 0; c < keys.padded; c += kLanes) {
        const auto s = hn::Load(d, row + c);
        const auto p = hn::Mul(Exp2(hn::MulSub(s, factor, max)), inverse);
        hn::Store(hn::IfThenZeroElse(hn::Eq(s, hn::Set(d, kMinusInf)), p), d, row + c);
      }
    }
  }

  // dP = dO V^T.
  void OutputGradientProduct(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span = Product(Role::kDP, tile, keys, layout_.head_dim_v);
    Gemm<Add::kNo>(tile.rows, keys.padded, layout_.head_dim_v, stage.dO, top_.VT, top_.dP);
  }

  // dS = P * (dP - D), through dropout; a hidden score has none, whatever stands behind it.
  void ScoreGradient(const QTile& tile, const KeyTile& keys, const QStage& stage) const {
    const auto span =
        tracer_.Work(EventKind::kSoftmax, Role::kDS, ForwardVerbs::Place(tile, keys.index));
    if (layout_.dropout.active()) {
      DropRows(layout_, tile, keys.begin, keys.padded, 0, tile.rows, top_.dP);
    }
    const F32 d;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const auto D = hn::Set(d, stage.D[r]);
      float* row = top_.dP + r * kTileLd;
      for (std::int64_t c = 0; c < keys.padded; c += kLanes) {
        const auto p = hn::Load(d, top_.S + r * kTileLd + c);
        const auto ds = hn::Mul(p, hn::Sub(hn::Load(d, row + c), D));
        hn::Store(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), ds), d, row + c);
      }
    }
    if (layout_.dropout.active()) {
      DropRows(layout_, tile, keys.begin, keys.padded, 0, tile.rows, top_.S);
    }
  }

  // Through the softcap: d tanh(x) = 1 - tanh(x)^2.
  void SoftcapGradient(const QTile& tile, const KeyTile& keys) const {
    if (layout_.softcap == 0.0) return;
    const F32 d;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < keys.padded; c += kLanes) {
        float* at = top_.dP + r * kTileLd + c;
        const auto t = hn::Load(d, top_.T + r * kTileLd + c);
        const auto ds = hn::Load(d, at);
        const auto slope = hn::NegMulAdd(t, t, hn::Set(d, 1.0f));
        hn::Store(hn::IfThenZeroElse(hn::Eq(ds, hn::Zero(d)), hn::Mul(ds, slope)), d, at);
      }
    }
  }

  // dV += P^T dO.
  void ValueGradient(const QTile& tile, const KeyTile& keys, const QStage& stage,
                     bool clean) const {
    const auto span = Product(Role::kDV, tile, keys, layout_.head_dim_v);
    Accumulate<Transpose::kYes>(clean, keys.cols, layout_.head_dim_v, tile.rows, top_.S, stage.dO,
                                top_.dV);
  }
  // dK += dS^T Q.
  void KeyGradient(const QTile& tile, const KeyTile& keys, const QStage& stage, bool clean) const {
    const auto span = Product(Role::kDK, tile, keys, layout_.head_dim);
    Accumulate<Transpose::kYes>(clean, keys.cols, layout_.head_dim, tile.rows, top_.dP, stage.Q,
                                top_.dK);
  }
  // This KV tile's part of dQ = dS K, alone or added to those before it.
  template <Add kAdd = Add::kNo>
  void QueryGradient(const QTile& tile, const KeyTile& keys, bool clean) const {
    const auto span = Product(Role::kDQ, tile, keys, layout_.head_dim);
    if (clean) {
      Gemm<kAdd>(tile.rows, layout_.head_dim, keys.padded, top_.dP, top_.K, top_.dQ);
    } else {
      if (kAdd == Add::kNo) ZeroTile(top_.dQ, tile.rows, layout_.head_dim);
      GemmSkippingZeros(tile.rows, layout_.head_dim, keys.padded, top_.dP, top_.K, top_.dQ);
    }
  }

  // Adds that part to the sum in slow memory.
  void AddToDQ(const QTile& tile, const KeyTile& keys, const DQAccumulator& sum) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const std::int64_t bytes = tile.rows * layout_.head_dim * 4;
    { const auto span = tracer_.Load(Role::kDQ, bytes, place); }
    const auto span = tracer_.Store(Role::kDQ, bytes, place);
    const F32 d;
    const float scale = static_cast<float>(layout_.softmax_scale);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      float* total = sum.Row(tile, r);
      const float* part = top_.dQ + r * kTileLd;
      std::int64_t c = 0;
      for (; c + kLanes <= layout_.head_dim; c += kLanes) {
        const auto now = hn::LoadU(d, total + c);
        hn::StoreU(hn::MulAdd(hn::Load(d, part + c), hn::Set(d, scale), now), d, total + c);
      }
      for (; c < layout_.head_dim; ++c) total[c] = std::fma(part[c], scale, total[c]);
    }
  }

  void ZeroGradients(const KeyTile& keys) const {
    ZeroTile(top_.dK, keys.cols, layout_.head_dim);
    ZeroTile(top_.dV, keys.cols, layout_.head_dim_v);
  }
  void StoreGradients(const QTile& tile, const KeyTile& keys, const RowView& dk,
                      const RowView& dv) const {
    StoreScaled(call_.KeyScale(), tile, keys, dk, dv);
  }
  // dK times key_scale, and dV.
  void StoreScaled(float key_scale, const QTile& tile, const KeyTile& keys, const RowView& dk,
                   const RowView& dv) const {
    const auto place = ForwardVerbs::Place(tile, keys.index);
    const std::int64_t row0 = tile.sequence.k_begin + keys.begin;
    {
      const auto span =
          tracer_.Store(Role::kDK, keys.cols * layout_.head_dim * ItemSize(dk.dtype), place);
      for (std::int64_t r = 0; r < keys.cols; ++r) {
        StoreRow(top_.dK + r * kTileLd, layout_.head_dim, key_scale, dk.dtype,
                 dk.Row(tile.batch, row0 + r, tile.head_kv));
      }
    }
    const auto span =
        tracer_.Store(Role::kDV, keys.cols * layout_.head_dim_v * ItemSize(dv.dtype), place);
    for (std::int64_t r = 0; r < keys.cols; ++r) {
      StoreRow(top_.dV + r * kTileLd, layout_.head_dim_v, 1.0f, dv.dtype,
               dv.Row(tile.batch, row0 + r, tile.head_kv));
    }
  }

  // True when no NaN or infinity stands behind a hidden score of this tile.
  bool Clean(const QTile& tile, const KeyTile& keys, const QStage& stage, bool masked) const {
    return !masked || (AllFinite(stage.Q, tile.rows, RoundUp(layout_.head_dim, kLanes)) &&
                       AllFinite(stage.dO, tile.rows, RoundUp(layout_.head_dim_v, kLanes)) &&
                       AllFinite(top_.K, keys.padded, RoundUp(layout_.head_dim, kLanes)));
  }

  const Tracer& tracer() const { return tracer_; }

 protected:
  Tracer::Span Product(Role role, const QTile& tile, const KeyTile& keys,
                       std::int64_t depth) const {
    return tracer_.Product(role, 2 * tile.rows * keys.cols * depth,
                           ForwardVerbs::Place(tile, keys.index));
  }
  void KeepTanh(const QTile& tile, const KeyTile& keys) const {
    const F32 d;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < keys.padded; c += kLanes) {
        hn::Store(Tanh(hn::Load(d, top_.S + r * kTileLd + c)), d, top_.T + r * kTileLd + c);
      }
    }
  }
  template <Transpose kTranspose>
  static void Accumulate(bool clean, std::int64_t rows, std::int64_t cols, std::int64_t depth,
                         const float* a, const float* b, float* c) {
    if (clean) {
      Gemm<Add::kYes, kTranspose>(rows, cols, depth, a, b, c);
    } else {
      GemmSkippingZeros<kTranspose>(rows, cols, depth, a, b, c);
    }
  }

  const BackwardCall& call_;
  const Layout& layout_;
  const Tracer& tracer_;
  const BackwardWorktop& top_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
