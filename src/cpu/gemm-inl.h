// Products of tiles: C (+)= A B, float32. The one place where the CPU kernels spend their FLOPs.
// Per-target include guard.
#if defined(FLASHWOK_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_GEMM_INL_H_
#undef FLASHWOK_CPU_GEMM_INL_H_
#else
#define FLASHWOK_CPU_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include "cpu/worktop.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
inline constexpr int kLanes = HWY_LANES(float);

// Accumulators of kRows x (kVectors * kLanes) floats fill the register file.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
inline constexpr int kGemmRows = 12;
#elif HWY_TARGET == HWY_WASM
inline constexpr int kGemmRows = 4;
#else
inline constexpr int kGemmRows = 6;
#endif
inline constexpr int kGemmVectors = 2;

constexpr std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Register arrays stay in registers only when the loops over them are unrolled.
#if HWY_COMPILER_CLANG
#define FLASHWOK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FLASHWOK_UNROLL _Pragma("GCC unroll 32")
#endif

enum class Add : bool { kNo, kYes };        // C = A B or C += A B
enum class Transpose : bool { kNo, kYes };  // A as stored, or A stored transposed

template <int kRows, int kVectors, Add kAdd, Transpose kTranspose>
HWY_INLINE void MicroKernel(std::int64_t depth, const float* HWY_RESTRICT a,
                            const float* HWY_RESTRICT b, float* HWY_RESTRICT c) {
  const F32 d;
  constexpr std::int64_t kRowStep = kTranspose == Transpose::kYes ? 1 : kTileLd;
  constexpr std::int64_t kDepthStep = kTranspose == Transpose::kYes ? kTileLd : 1;
  hn::Vec<F32> sum[kRows][kVectors];
  FLASHWOK_UNROLL
  for (int i = 0; i < kRows; ++i) {
    FLASHWOK_UNROLL
    for (int n = 0; n < kVectors; ++n) {
      sum[i][n] = kAdd == Add::kYes ? hn::Load(d, c + i * kTileLd + n * kLanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    hn::Vec<F32> row[kVectors];
    FLASHWOK_UNROLL
    for (int n = 0; n < kVectors; ++n) row[n] = hn::Load(d, b + n * kLanes);
    FLASHWOK_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const auto value = hn::Set(d, a[i * kRowStep]);
      FLASHWOK_UNROLL
      for (int n = 0; n < kVectors; ++n) sum[i][n] = hn::MulAdd(value, row[n], sum[i][n]);
    }
    a += kDepthStep;
    b += kTileLd;
  }
  FLASHWOK_UNROLL
  for (int i = 0; i < kRows; ++i) {
    FLASHWOK_UNROLL
    for (int n = 0; n < kVectors; ++n) hn::Store(sum[i][n], d, c + i * kTileLd + n * kLanes);
  }
}

// All rows of one panel of columns. Each row's sum runs over k in order whatever block it falls
// into, so its bits do not depend on its neighbours.
template <int kVectors, Add kAdd, Transpose kTranspose>
HWY_NOINLINE void GemmPanel(std::int64_t rows, std::int64_t depth, const float* a, const float* b,
                            float* c) {
  constexpr std::int64_t kRowStep = kTranspose == Transpose::kYes ? 1 : kTileLd;
  constexpr int kSmall = kGemmRows / 3 > 1 ? kGemmRows / 3 : 2;
  std::int64_t i = 0;
  for (; i + kGemmRows <= rows; i += kGemmRows) {
    MicroKernel<kGemmRows, kVectors, kAdd, kTranspose>(depth, a + i * kRowStep, b, c + i * kTileLd);
  }
  for (; i + kSmall <= rows; i += kSmall) {
    MicroKernel<kSmall, kVectors, kAdd, kTranspose>(depth, a + i * kRowStep, b, c + i * kTileLd);
  }
  for (; i < rows; ++i) {
    MicroKernel<1, kVectors, kAdd, kTranspose>(depth, a + i * kRowStep, b, c + i * kTileLd);
  }
}

// C [rows, cols] (+)= A [rows, depth] B [depth, cols]; all tiles have leading dimension kTileLd.
// Columns are computed up to the next multiple of kLanes: B must be readable there.
// With Transpose::kYes A is stored [depth, rows].
template <Add kAdd, Transpose kTranspose = Transpose::kNo>
void Gemm(std::int64_t rows, std::int64_t cols, std::int64_t depth, const float* a, const float* b,
          float* c) {
  constexpr int kPanel = kGemmVectors * kLanes;
  std::int64_t n = 0;
  for (; n + kPanel <= RoundUp(cols, kLanes); n += kPanel) {
    GemmPanel<kGemmVectors, kAdd, kTranspose>(rows, depth, a, b + n, c + n);
  }
  for (; n < cols; n += kLanes) {
    GemmPanel<1, kAdd, kTranspose>(rows, depth, a, b + n, c + n);
  }
}

// The same product without the terms whose factor in A is zero. A masked score has P = 0, and what
// stands in K, V, Q or dO behind it, a NaN or an infinity, must not reach the row.
template <Transpose kTranspose = Transpose::kNo>
HWY_NOINLINE void GemmSkippingZeros(std::int64_t rows, std::int64_t cols, std::int64_t depth,
                                    const float* a, const float* b, float* c) {
  const F32 d;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float factor = kTranspose == Transpose::kYes ? a[k * kTileLd + i] : a[i * kTileLd + k];
      if (factor == 0.0f) continue;
      // The same instruction as in the micro-kernel, for the same bits.
      for (std::int64_t n = 0; n < cols; n += kLanes) {
        const auto row = hn::Load(d, b + k * kTileLd + n);
        float* at = c + i * kTileLd + n;
        hn::Store(hn::MulAdd(hn::Set(d, factor), row, hn::Load(d, at)), d, at);
      }
    }
  }
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
