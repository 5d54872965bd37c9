// The SIMD verbs of the CPU kernels: bring a tile to the worktop, take one back, mask and bias
// scores, exp2, online softmax, rescale. Written once for every instruction set. Per-target guard.
#if defined(FLASHWOK_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_TILE_INL_H_
#undef FLASHWOK_CPU_TILE_INL_H_
#else
#define FLASHWOK_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/gemm-inl.h"
#include "cpu/worktop.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// ---- rows in and out ------------------------------------------------------------------------

// n values of any dtype to float, times scale; the tail up to `padded` becomes zero.
HWY_INLINE void LoadRow(const void* source, DType dtype, std::int64_t n, std::int64_t padded,
                        float scale, float* HWY_RESTRICT row) {
  const F32 d;
  const hn::Rebind<std::uint16_t, F32> d16;
  const auto factor = hn::Set(d, scale);
  std::int64_t i = 0;
  if (dtype == DType::kFloat32) {
    const float* values = static_cast<const float*>(source);
    for (; i + kLanes <= n; i += kLanes) {
      hn::Store(hn::Mul(hn::LoadU(d, values + i), factor), d, row + i);
    }
  } else if (dtype == DType::kBFloat16) {
    const std::uint16_t* values = static_cast<const std::uint16_t*>(source);
    for (; i + kLanes <= n; i += kLanes) {
      const auto wide = hn::PromoteTo(U32(), hn::LoadU(d16, values + i));
      hn::Store(hn::Mul(hn::BitCast(d, hn::ShiftLeft<16>(wide)), factor), d, row + i);
    }
  } else if (dtype == DType::kFloat16) {
    const hn::Rebind<hwy::float16_t, F32> dh;
    const hwy::float16_t* values = static_cast<const hwy::float16_t*>(source);
    for (; i + kLanes <= n; i += kLanes) {
      hn::Store(hn::Mul(hn::PromoteTo(d, hn::LoadU(dh, values + i)), factor), d, row + i);
    }
  }
  for (; i < n; ++i) row[i] = LoadAsFloat(source, dtype, i) * scale;
  for (; i < padded; ++i) row[i] = 0.0f;
}

// To bfloat16, to nearest even; NaN stays NaN.
HWY_INLINE hn::Vec<I32> RoundToBf16(VF value) {
  const I32 di;
  const auto bits = hn::BitCast(U32(), value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(U32(), 0x7FFF)), odd);
  const auto quiet = hn::Or(bits, hn::Set(U32(), 0x400000));
  const auto is_number = hn::RebindMask(U32(), hn::Eq(value, value));
  return hn::BitCast(di, hn::ShiftRight<16>(hn::IfThenElse(is_number, rounded, quiet)));
}

HWY_INLINE void StoreRow(const float* HWY_RESTRICT row, std::int64_t n, float scale, DType dtype,
                         void* target) {
  const F32 d;
  const auto factor = hn::Set(d, scale);
  std::int64_t i = 0;
  if (dtype == DType::kFloat32) {
    float* values = static_cast<float*>(target);
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(hn::Mul(hn::Load(d, row + i), factor), d, values + i);
    }
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // elsewhere Highway does not round
  } else if (dtype == DType::kFloat16) {
    const hn::Rebind<hwy::float16_t, F32> dh;
    hwy::float16_t* values = static_cast<hwy::float16_t*>(target);
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(hn::DemoteTo(dh, hn::Mul(hn::Load(d, row + i), factor)), dh, values + i);
    }
#endif
  } else if (dtype == DType::kBFloat16) {
    const hn::Rebind<std::uint16_t, F32> d16;
    std::uint16_t* values = static_cast<std::uint16_t*>(target);
    for (; i + kLanes <= n; i += kLanes) {
      const auto rounded = RoundToBf16(hn::Mul(hn::Load(d, row + i), factor));
      hn::StoreU(hn::DemoteTo(d16, rounded), d16, values + i);
    }
  }
  for (; i < n; ++i) StoreFromFloat(target, dtype, i, row[i] * scale);
}

#if HWY_TARGET != HWY_SCALAR
// 4 columns of 4 * kBlocks rows: block g is that of row 4 g.
template <int kBlocks>
HWY_INLINE auto LoadBlocks(const float* HWY_RESTRICT rows, std::int64_t stride) {
  const hn::FixedTag<float, 4 * kBlocks> d;
  if constexpr (kBlocks == 1) {
    return hn::LoadU(d, rows);
  } else {
    constexpr int kHalf = kBlocks / 2;
    return hn::Combine(d, LoadBlocks<kHalf>(rows + 4 * kHalf * stride, stride),
                       LoadBlocks<kHalf>(rows, stride));
  }
}
#endif

// kLanes rows of floats, n columns, written as columns of a tile: tile[c, 0..kLanes). The rows may
// be read up to the next multiple of kLanes.
HWY_INLINE void StoreTransposed(const float* HWY_RESTRICT rows, std::int64_t stride, std::int64_t n,
                                float* HWY_RESTRICT tile) {
#if HWY_TARGET != HWY_SCALAR
  // 4 columns at a time: 4 x 4 values are transposed within their 128 bits.
  const F32 d;
  const hn::Repartition<double, F32> d2;
  constexpr int kBlocks = kLanes / 4;
  for (std::int64_t c = 0; c < n; c += 4) {
    const auto r0 = LoadBlocks<kBlocks>(rows + c, stride);
    const auto r1 = LoadBlocks<kBlocks>(rows + stride + c, stride);
    const auto r2 = LoadBlocks<kBlocks>(rows + 2 * stride + c, stride);
    const auto r3 = LoadBlocks<kBlocks>(rows + 3 * stride + c, stride);
    const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
    const VF columns[4] = {hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)),
                           hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)),
                           hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)),
                           hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23))};
    for (int k = 0; k < 4 && c + k < n; ++k) hn::Store(columns[k], d, tile + (c + k) * kTileLd);
  }
#else
  for (std::int64_t c = 0; c < n; ++c) {
    for (int r = 0; r < kLanes; ++r) tile[c * kTileLd + r] = rows[r * stride + c];
  }
#endif
}

// Rows [begin, end) of a tile of `rows` real rows from slow memory, as they are; rows from `rows`
// on become zero. source(r) is the address of row r.
template <typename Source>
HWY_INLINE void LoadTile(const Source& source, DType dtype, std::int64_t begin, std::int64_t end,
                         std::int64_t rows, std::int64_t n, float scale, float* HWY_RESTRICT tile) {
  const std::int64_t padded = RoundUp(n, kLanes);
  for (std::int64_t r = begin; r < end; ++r) {
    float* row = tile + r * kTileLd;
    if (r < rows) {
      LoadRow(source(r), dtype, n, padded, scale, row);
    } else {
      std::fill_n(row, padded, 0.0f);
    }
  }
}

// The same rows as columns [begin, end) of the tile; both multiples of kLanes.
template <typename Source>
HWY_INLINE void LoadTileTransposed(const Source& source, DType dtype, std::int64_t begin,
                                   std::int64_t end, std::int64_t rows, std::int64_t n,
                                   float* HWY_RESTRICT tile) {
  HWY_ALIGN float buffer[kLanes * kMaxTileCols];
  const std::int64_t padded = RoundUp(n, kLanes);
  for (std::int64_t r = begin; r < end; r += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) {
      float* row = buffer + k * kMaxTileCols;
      if (r + k < rows) {
        LoadRow(source(r + k), dtype, n, padded, 1.0f, row);
      } else {
        std::fill_n(row, padded, 0.0f);
      }
    }
    StoreTransposed(buffer, kMaxTileCols, n, tile + r);
  }
}

HWY_INLINE void ZeroTile(float* tile, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::fill_n(tile + r * kTileLd, RoundUp(cols, kLanes), 0.0f);
  }
}

HWY_INLINE bool AllFinite(const float* tile, std::int64_t rows, std::int64_t cols) {
  const F32 d;
  auto sum = hn::Zero(d);  // x * 0 is NaN exactly for an infinity or a NaN
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      sum = hn::MulAdd(hn::Load(d, tile + r * kTileLd + c), hn::Zero(d), sum);
    }
  }
  return hn::AllTrue(d, hn::Eq(sum, sum));
}

// ---- elementary functions -------------------------------------------------------------------

// 2^x for x <= 0 and NaN: a polynomial of relative error 1e-7 on [-1/2, 1/2], exact at 0, zero
// below -126. Adding 1.5 * 2^23 rounds x to a whole number and leaves it in the low bits.
HWY_INLINE VF Exp2(VF x) {
  const F32 d;
  const I32 di;
  const auto magic = hn::Set(d, 12582912.0f + 127.0f);  // 127: the exponent's bias
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::Set(d, 1.326472724e-03f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.671512681e-03f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550733744e-02f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402224208e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931469776e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

// tanh(x) to about one ulp: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) beyond.
HWY_INLINE VF Tanh(VF x) {
  const F32 d;
  const auto z = hn::Mul(x, x);
  auto p = hn::Set(d, -5.424338826e-03f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.037294640e-02f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.365122540e-02f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.333022707e-01f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.333322063e-01f));
  const auto small = hn::MulAdd(hn::Mul(p, z), x, x);
  const auto magnitude = hn::Abs(x);
  const auto decay = Exp2(hn::Mul(magnitude, hn::Set(d, -2.0f * kLog2E)));  // e^(-2|x|)
  const auto one = hn::Set(d, 1.0f);
  const auto large = hn::CopySign(hn::Div(hn::Sub(one, decay), hn::Add(one, decay)), x);
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0.65f)), large, small);
}

// ---- softmax ----------------------------------------------------------------------------------

HWY_INLINE void ResetState(const RowState& state, std::int64_t rows) {
  std::fill_n(state.row_max, rows, kMinusInf);
  std::fill_n(state.row_sum, rows, 0.0f);
}

// The reference for exp2: a row that has seen no key yet keeps -inf - 0 = -inf.
HWY_INLINE float SafeMax(float row_max) { return row_max == kMinusInf ? 0.0f : row_max; }

HWY_INLINE float Exp2Scalar(float x) { return hn::GetLane(Exp2(hn::Set(F32(), x))); }

HWY_INLINE float RowMax(const float* HWY_RESTRICT row, std::int64_t cols) {
  const F32 d;
  auto even = hn::Load(d, row);
  auto odd = even;
  for (std::int64_t c = kLanes; c < cols; c += 2 * kLanes) {
    even = hn::Max(even, hn::Load(d, row + c));
    if (c + kLanes < cols) odd = hn::Max(odd, hn::Load(d, row + c + kLanes));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
}

// row -> exp2(scale * row - max) in place; returns the sum.
HWY_INLINE float Exp2Row(float* HWY_RESTRICT row, std::int64_t cols, float scale, float max) {
  const F32 d;
  const auto factor = hn::Set(d, scale);
  const auto shift = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    const auto p = Exp2(hn::MulSub(hn::Load(d, row + c), factor, shift));
    hn::Store(p, d, row + c);
    sum = hn::Add(sum, p);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Rows whose maxima and sums are brought up to date together.
inline constexpr std::int64_t kRowGroup = 16;

// A group's new row_max and alpha = exp2(old - new maximum); leaves in `tile_max`, the maxima of
// the tile, the references of its exp2: a row that has seen no key yet has 0.
HWY_INLINE void RaiseMax(float* HWY_RESTRICT row_max, float* HWY_RESTRICT alpha,
                         float* HWY_RESTRICT tile_max) {
  const F32 d;
  for (std::int64_t r = 0; r < kRowGroup; r += kLanes) {
    const auto old = hn::Load(d, row_max + r);
    const auto raised = hn::Max(hn::Load(d, tile_max + r), old);
    const auto safe = hn::IfThenZeroElse(hn::Eq(raised, hn::Set(d, kMinusInf)), raised);
    hn::Store(raised, d, row_max + r);
    hn::Store(Exp2(hn::Sub(old, safe)), d, alpha + r);
    hn::Store(safe, d, tile_max + r);
  }
}

// One tile's step of online softmax (FA1 Algorithm 1, lines 10 to 12; FA2 Algorithm 1, line 9):
// new row_max, S -> P = exp2(scale * S - row_max) in place, row_sum, and alpha = exp2(old - new
// maximum). `cols` is a multiple of kLanes; masked and padded scores are -inf; scale > 0.
HWY_INLINE void OnlineSoftmax(float* HWY_RESTRICT scores, std::int64_t rows, std::int64_t cols,
                              float scale, const RowState& state) {
  HWY_ALIGN float row_max[kRowGroup] = {}, alpha[kRowGroup] = {}, tile_max[kRowGroup] = {};
  for (std::int64_t begin = 0; begin < rows; begin += kRowGroup) {
    const std::int64_t group = std::min(kRowGroup, rows - begin);
    float* S = scores + begin * kTileLd;
    for (std::int64_t r = 0; r < group; ++r) tile_max[r] = scale * RowMax(S + r * kTileLd, cols);
    std::copy_n(state.row_max + begin, group, row_max);
    RaiseMax(row_max, alpha, tile_max);
    std::copy_n(row_max, group, state.row_max + begin);
    std::copy_n(alpha, group, state.alpha + begin);
    for (std::int64_t r = 0; r < group; ++r) {
      const float sum = Exp2Row(S + r * kTileLd, cols, scale, tile_max[r]);
      state.row_sum[begin + r] = state.row_sum[begin + r] * alpha[r] + sum;
    }
  }
}

HWY_INLINE void ScaleRow(float* HWY_RESTRICT row, std::int64_t cols, float factor) {
  const F32 d;
  const auto f = hn::Set(d, factor);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, row + c), f), d, row + c);
  }
}

// The old part of O, corrected for the larger maximum; exact and free where none came.
HWY_INLINE void Rescale(float* output, std::int64_t rows, std::int64_t cols, const float* alpha) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (alpha[r] != 1.0f) ScaleRow(output + r * kTileLd, cols, alpha[r]);
  }
}

// Joins the state (b, O_b) of later keys to (a, O_a), both not yet divided by their sums.
HWY_INLINE void MergeInto(const RowState& a, float* o_a, const RowState& b, const float* o_b,
                          std::int64_t rows, std::int64_t cols) {
  const F32 d;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float max = std::max(a.row_max[r], b.row_max[r]);
    const float weight_a = Exp2Scalar(a.row_max[r] - SafeMax(max));
    const float weight_b = Exp2Scalar(b.row_max[r] - SafeMax(max));
    a.row_max[r] = max;
    a.row_sum[r] = a.row_sum[r] * weight_a + b.row_sum[r] * weight_b;
    const auto factor_a = hn::Set(d, weight_a);
    const auto factor_b = hn::Set(d, weight_b);
    float* row_a = o_a + r * kTileLd;
    const float* row_b = o_b + r * kTileLd;
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      const auto part = hn::Mul(hn::Load(d, row_b + c), factor_b);
      hn::Store(hn::MulAdd(hn::Load(d, row_a + c), factor_a, part), d, row_a + c);
    }
  }
}

// lse of a row, natural log.
HWY_INLINE float LogSumExp(float row_max, float row_sum) {
  return row_sum == 0.0f ? kMinusInf : row_max * kLn2 + std::log(row_sum);
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
