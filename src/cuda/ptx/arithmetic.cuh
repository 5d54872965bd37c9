// Single instructions of arithmetic and conversion that C++ does not reach.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

// 2^x to 2 ulp, 0 for x = -inf; subnormal results are flushed to 0 (MUFU.EX2).
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same number, of which the compiler does not know that: what depends on it is computed here,
// not kept in registers from before a loop.
__device__ __forceinline__ int Here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The larger of three, as integers (VIMNMX3 on sm_90).
__device__ __forceinline__ int Max3(int a, int b, int c) { return __vimax3_s32(a, b, c); }

// Two floats as a pair of 16-bit numbers, rounded to nearest even; `low` in the low half.
template <DType kType>
__device__ __forceinline__ std::uint32_t Pack(float low, float high) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  std::uint32_t pair;
  if constexpr (kType == DType::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// The low 16 bits as a number.
template <DType kType>
__device__ __forceinline__ float Unpack(std::uint32_t bits) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  float value;
  if constexpr (kType == DType::kBFloat16) {
    value = __uint_as_float(bits << 16);
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }"
        : "=f"(value)
        : "r"(bits));
  }
  return value;
}

}  // namespace flashwok::cuda::ptx
