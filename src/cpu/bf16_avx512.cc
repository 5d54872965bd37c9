// bfloat16 products by AVX512_BF16. Only this file's own code may be compiled for it: no header
// with inline functions comes in.
#include "cpu/bf16_products.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#include "cpu/tile_ld.h"

namespace flashwok::cpu {
namespace {

constexpr int kLanes = 16;

__m512bh Broadcast(Bf16Pair pair) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
}

// Two vectors of columns; the sums stay in registers.
template <int kRows>
void MicroKernel(bool add, std::int64_t depth, const Bf16Pair* a, const Bf16Pair* b, float* c) {
  __m512 sum[kRows][2];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
    for (int n = 0; n < 2; ++n) {
      sum[i][n] = add ? _mm512_load_ps(c + i * kTileLd + n * kLanes) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto left = reinterpret_cast<__m512bh>(_mm512_load_si512(b));
    const auto right = reinterpret_cast<__m512bh>(_mm512_load_si512(b + kLanes));
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const __m512bh value = Broadcast(a[i * kTileLd]);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], value, left);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], value, right);
    }
    a += 1;
    b += kTileLd;
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
    for (int n = 0; n < 2; ++n) _mm512_store_ps(c + i * kTileLd + n * kLanes, sum[i][n]);
  }
}

void Gemm(bool add, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Bf16Pair* a,
          const Bf16Pair* b, float* c) {
  for (std::int64_t n = 0; n < cols; n += 2 * kLanes) {
    std::int64_t i = 0;
    for (; i + 12 <= rows; i += 12) {
      MicroKernel<12>(add, depth, a + i * kTileLd, b + n, c + i * kTileLd + n);
    }
    for (; i < rows; ++i) {
      MicroKernel<1>(add, depth, a + i * kTileLd, b + n, c + i * kTileLd + n);
    }
  }
}

void Round(std::int64_t rows, std::int64_t cols, const float* source, Bf16Pair* target) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < cols; n += 2 * kLanes) {
      const __m512 low = _mm512_load_ps(source + r * kTileLd + n);
      const __m512 high = _mm512_load_ps(source + r * kTileLd + n + kLanes);
      _mm512_store_si512(target + r * kTileLd + n / 2,
                         reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

constexpr __mmask16 kAll = 0xFFFF;  // without a mask these make GCC warn of its own header

// 16 values in the low halves.
__m512i Halves(const float* values, bool present) {
  if (!present) return _mm512_setzero_si512();
  const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_load_ps(values));
  return _mm512_maskz_cvtepu16_epi32(kAll, reinterpret_cast<__m256i>(narrow));
}

void Weave(std::int64_t rows, std::int64_t padded, std::int64_t cols, const float* source,
           Bf16Pair* target) {
  for (std::int64_t r = 0; r < padded; r += 2) {
    for (std::int64_t n = 0; n < cols; n += kLanes) {
      const float* at = source + r * kTileLd + n;
      const __m512i low = Halves(at, r < rows);
      const __m512i high = Halves(at + kTileLd, r + 1 < rows);
      _mm512_store_si512(target + r / 2 * kTileLd + n,
                         _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16)));
    }
  }
}

void Nothing() {}

constexpr Bf16Products kProducts{Nothing, Nothing, Gemm, Round, Weave};

}  // namespace

const Bf16Products* Avx512Bf16Products() {
  static const bool present =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return present ? &kProducts : nullptr;
}

}  // namespace flashwok::cpu

#else

namespace flashwok::cpu {
const Bf16Products* Avx512Bf16Products() { return nullptr; }
}  // namespace flashwok::cpu

#endif
