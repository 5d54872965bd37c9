// Stands for src/cuda/ptx/arithmetic.cuh.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

// Subnormal arguments and results count as 0.
inline float Exp2(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}

inline int Here(int x) { return x; }
inline int Max3(int a, int b, int c) { return __vimax3_s32(a, b, c); }

template <DType kType>
std::uint32_t Pack(float low, float high) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  if constexpr (kType == DType::kBFloat16) {
    return FloatToBf16(low) | static_cast<std::uint32_t>(FloatToBf16(high)) << 16;
  } else {
    return FloatToHalf(low) | static_cast<std::uint32_t>(FloatToHalf(high)) << 16;
  }
}

template <DType kType>
float Unpack(std::uint32_t bits) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  const auto low = static_cast<std::uint16_t>(bits);
  if constexpr (kType == DType::kBFloat16) {
    return Bf16ToFloat(low);
  } else {
    return HalfToFloat(low);
  }
}

}  // namespace flashwok::cuda::ptx
