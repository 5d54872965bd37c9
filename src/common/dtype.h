// Scalar conversions between float and the narrow dtypes: exact upwards, to nearest even downwards.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok {

// std::bit_cast, which the library of Emscripten 3.1.6 does not have yet.
template <class To, class From>
constexpr To BitCast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

// A binary format of one sign bit, kExponent exponent bits and kMantissa mantissa bits.
// kFiniteOnly: no infinity, and only the all-ones pattern is NaN (e4m3fn); overflow saturates.
template <int kExponent, int kMantissa, bool kFiniteOnly>
struct NarrowFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  static constexpr std::uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr std::uint32_t kNaN =
      kFiniteOnly ? kMagnitude : kInfinity | (1u << (kMantissa - 1));
  static constexpr std::uint32_t kLargest = kFiniteOnly ? kMagnitude - 1 : kInfinity - 1;

  static constexpr float ToFloat(std::uint32_t bits) {
    const std::uint32_t sign = (bits >> (kExponent + kMantissa)) << 31;
    const std::uint32_t magnitude = bits & kMagnitude;
    if (kFiniteOnly ? magnitude == kNaN : magnitude > kInfinity) {
      return BitCast<float>(sign | 0x7FC00000u);
    }
    if (!kFiniteOnly && magnitude == kInfinity) return BitCast<float>(sign | 0x7F800000u);
    const std::uint32_t exponent = magnitude >> kMantissa;
    if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - kMantissa), exact in float
      const float unit = BitCast<float>((127u + 1 - kBias - kMantissa) << 23);
      const float value = static_cast<float>(magnitude) * unit;
      return sign ? -value : value;
    }
    const std::uint32_t mantissa = magnitude & ((1u << kMantissa) - 1);
    return BitCast<float>(sign | ((exponent + 127 - kBias) << 23) | (mantissa << (23 - kMantissa)));
  }

  static constexpr std::uint32_t FromFloat(float value) {
    const std::uint32_t bits = BitCast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 31) << (kExponent + kMantissa);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | kNaN;
    const std::uint32_t overflow = kFiniteOnly ? kLargest : kInfinity;
    if (magnitude == 0x7F800000u) return sign | overflow;
    const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;
    // Bits dropped: more for a subnormal result, whose leading one becomes explicit.
    const int shift = 23 - kMantissa + (exponent < 1 ? 1 - exponent : 0);
    if (shift > 25) return sign;
    const std::uint32_t significand =
        exponent < 1 ? (magnitude & 0x7FFFFFu) | 0x800000u : magnitude & 0x7FFFFFu;
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t odd = (significand >> shift) & 1;
    std::uint32_t result = (significand + half - 1 + odd) >> shift;
    if (exponent >= 1) result += static_cast<std::uint32_t>(exponent) << kMantissa;
    return sign | (result > kLargest ? overflow : result);
  }
};

using Half = NarrowFloat<5, 10, false>;
using E4M3 = NarrowFloat<4, 3, true>;
using E5M2 = NarrowFloat<5, 2, false>;

constexpr float HalfToFloat(std::uint16_t bits) { return Half::ToFloat(bits); }
constexpr float E4M3ToFloat(std::uint8_t bits) { return E4M3::ToFloat(bits); }
constexpr float E5M2ToFloat(std::uint8_t bits) { return E5M2::ToFloat(bits); }
constexpr float Bf16ToFloat(std::uint16_t bits) {
  return BitCast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t FloatToHalf(float value) {
  return static_cast<std::uint16_t>(Half::FromFloat(value));
}
constexpr std::uint8_t FloatToE4M3(float value) {
  return static_cast<std::uint8_t>(E4M3::FromFloat(value));
}
constexpr std::uint8_t FloatToE5M2(float value) {
  return static_cast<std::uint8_t>(E5M2::FromFloat(value));
}
constexpr std::uint16_t FloatToBf16(float value) {
  const std::uint32_t bits = BitCast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

constexpr bool IsFloat8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}
constexpr bool IsFloating(DType dtype) { return dtype <= DType::kFloat8E5M2; }

inline float LoadAsFloat(const void* base, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(base)[index];
    case DType::kFloat16: return HalfToFloat(static_cast<const std::uint16_t*>(base)[index]);
    case DType::kBFloat16: return Bf16ToFloat(static_cast<const std::uint16_t*>(base)[index]);
    case DType::kFloat8E4M3: return E4M3ToFloat(static_cast<const std::uint8_t*>(base)[index]);
    case DType::kFloat8E5M2: return E5M2ToFloat(static_cast<const std::uint8_t*>(base)[index]);
    case DType::kBool: return static_cast<const std::uint8_t*>(base)[index] != 0 ? 1.0f : 0.0f;
    case DType::kInt32: return static_cast<float>(static_cast<const std::int32_t*>(base)[index]);
  }
  return 0.0f;
}

inline void StoreFromFloat(void* base, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kFloat32: static_cast<float*>(base)[index] = value; break;
    case DType::kFloat16: static_cast<std::uint16_t*>(base)[index] = FloatToHalf(value); break;
    case DType::kBFloat16: static_cast<std::uint16_t*>(base)[index] = FloatToBf16(value); break;
    case DType::kFloat8E4M3: static_cast<std::uint8_t*>(base)[index] = FloatToE4M3(value); break;
    case DType::kFloat8E5M2: static_cast<std::uint8_t*>(base)[index] = FloatToE5M2(value); break;
    case DType::kBool: static_cast<std::uint8_t*>(base)[index] = value != 0.0f; break;
    case DType::kInt32:
      static_cast<std::int32_t*>(base)[index] = static_cast<std::int32_t>(value);
      break;
  }
}

}  // namespace flashwok
