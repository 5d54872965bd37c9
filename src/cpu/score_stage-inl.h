// The score stage: softcap, bias, ALiBi and masks on one tile of scores, forward; and the dropout
// of P. Scores are in units of log2. Per-target guard.
#if defined(FLASHWOK_CPU_SCORE_STAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_SCORE_STAGE_INL_H_
#undef FLASHWOK_CPU_SCORE_STAGE_INL_H_
#else
#define FLASHWOK_CPU_SCORE_STAGE_INL_H_
#endif

#include "cpu/tile-inl.h"
#include "cpu/worktop.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// What Q is multiplied by, so that Q K^T is the score in units of log2, or with softcap the
// argument of its tanh.
HWY_INLINE float QueryScale(const Layout& layout, const QTile& tile) {
  const double scale = layout.softmax_scale * layout.ScoreDescale(tile.batch, tile.head_kv);
  return static_cast<float>(layout.softcap > 0.0 ? scale / layout.softcap
                                                 : scale * static_cast<double>(kLog2E));
}

// A bias of -inf hides the key, whatever its score, NaN included.
HWY_INLINE void AddBias(const char* bias, DType dtype, std::int64_t cols, float* row) {
  const F32 d;
  std::int64_t c = 0;
  if (dtype == DType::kFloat32) {
    const float* values = reinterpret_cast<const float*>(bias);
    for (; c + kLanes <= cols; c += kLanes) {
      const auto value = hn::LoadU(d, values + c);
      const auto hidden = hn::Eq(value, hn::Set(d, kMinusInf));
      const auto sum = hn::MulAdd(value, hn::Set(d, kLog2E), hn::Load(d, row + c));
      hn::Store(hn::IfThenElse(hidden, value, sum), d, row + c);
    }
  }
  for (; c < cols; ++c) {
    const float value = LoadAsFloat(bias, dtype, c);
    row[c] = value == kMinusInf ? kMinusInf : row[c] + value * kLog2E;
  }
}

HWY_INLINE void AddAlibi(float slope, std::int64_t center, std::int64_t begin, std::int64_t cols,
                         float* row) {
  for (std::int64_t c = 0; c < cols; ++c) {
    row[c] -= slope * kLog2E * static_cast<float>(std::abs(center - (begin + c)));
  }
}

HWY_INLINE void SoftcapRow(float cap, std::int64_t cols, float* row) {
  const F32 d;
  const auto factor = hn::Set(d, cap * kLog2E);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    hn::Store(hn::Mul(Tanh(hn::Load(d, row + c)), factor), d, row + c);
  }
}

HWY_INLINE void HideOutside(const KeyRange& seen, std::int64_t begin, std::int64_t padded,
                            float* row) {
  const std::int64_t first = std::clamp<std::int64_t>(seen.begin - begin, 0, padded);
  const std::int64_t last = std::clamp<std::int64_t>(seen.end - begin, first, padded);
  std::fill(row, row + first, kMinusInf);
  std::fill(row + last, row + padded, kMinusInf);
}

// Nothing but a mask between the product and the softmax.
HWY_INLINE bool PlainScores(const Layout& layout) {
  return !layout.bias && !layout.mask && !layout.has_alibi() && layout.softcap == 0.0 &&
         layout.softmax_scale != 0.0;
}

// Rows [row0, row0 + rows) of the Q tile against keys [begin, begin + cols).
HWY_INLINE void ScoreStage(const Layout& layout, const QTile& tile, std::int64_t begin,
                           std::int64_t cols, std::int64_t padded, std::int64_t row0,
                           std::int64_t rows, bool masked, float* scores) {
  if (PlainScores(layout) && !masked) return;
  const float slope = layout.AlibiSlope(tile.batch, tile.head);
  const std::int64_t shift = tile.sequence.seqlen_k - tile.sequence.seqlen_q;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t i = tile.row_begin + row0 + r;
    float* row = scores + r * kTileLd;
    if (layout.softcap > 0.0) SoftcapRow(static_cast<float>(layout.softcap), padded, row);
    if (layout.bias) {
      AddBias(layout.bias.At(tile.batch, tile.head, i, begin), layout.bias.dtype, cols, row);
    }
    if (slope != 0.0f) AddAlibi(slope, i + shift, begin, cols, row);
    if (layout.mask) {
      const char* keep = layout.mask.At(tile.batch, tile.head, i, begin);
      for (std::int64_t c = 0; c < cols; ++c) {
        if (keep[c] == 0) row[c] = kMinusInf;
      }
    }
    if (masked) HideOutside(tile.sequence.mask.Row(i), begin, padded, row);
  }
}

// Multiplies P by the dropout mask.
HWY_INLINE void DropRows(const Layout& layout, const QTile& tile, std::int64_t begin,
                         std::int64_t padded, std::int64_t row0, std::int64_t rows, float* P) {
  const Dropout& dropout = layout.dropout;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::uint32_t>(tile.row_begin + row0 + r);
    float* row = P + r * kTileLd;
    for (std::int64_t c = 0; c < padded; c += 4) {
      const PhiloxCounter words = dropout.Block(static_cast<std::uint32_t>(tile.batch_head), i,
                                                static_cast<std::uint32_t>((begin + c) / 4));
      for (int w = 0; w < 4; ++w) {
        row[c + w] *= words[w] >= dropout.threshold ? dropout.keep_scale : 0.0f;
      }
    }
  }
}

HWY_INLINE void TraceScoreInputs(const Tracer& tracer, const Layout& layout, std::int64_t rows,
                                 std::int64_t cols, const Tracer::Place& place) {
  if (!tracer.active()) return;
  if (layout.bias) tracer.Load(Role::kBias, rows * cols * ItemSize(layout.bias.dtype), place);
  if (layout.mask) tracer.Load(Role::kMask, rows * cols, place);
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
