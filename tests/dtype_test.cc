#include "common/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace flashwok {
namespace {

// A narrow dtype as its definition reads.
struct Format {
  const char* name;
  DType dtype;
  int exponent_bits, mantissa_bits;
  bool finite_only;
  float largest;
  float smallest;  // subnormal

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t sign_bit() const { return 1u << (bits() - 1); }

  float Decode(std::uint32_t pattern) const {
    const std::uint32_t exponent_mask = (1u << exponent_bits) - 1;
    const std::uint32_t exponent = (pattern >> mantissa_bits) & exponent_mask;
    const std::uint32_t mantissa = pattern & ((1u << mantissa_bits) - 1);
    const std::uint32_t all_ones = (1u << mantissa_bits) - 1;
    const double sign = (pattern & sign_bit()) != 0 ? -1.0 : 1.0;
    if (exponent == exponent_mask) {
      if (finite_only ? mantissa == all_ones : mantissa != 0) return std::nanf("");
      if (!finite_only) return static_cast<float>(sign * INFINITY);
    }
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double implicit = exponent == 0 ? 0.0 : 1.0;
    const int power = exponent == 0 ? 1 - bias : static_cast<int>(exponent) - bias;
    const double significand = implicit + std::ldexp(mantissa, -mantissa_bits);
    return static_cast<float>(sign * std::ldexp(significand, power));
  }

  float Load(std::uint32_t pattern) const {
    return LoadAsFloat(&pattern, dtype, 0);  // little-endian: the pattern is in the low bits
  }
  std::uint32_t Store(float value) const {
    std::uint32_t room = 0;  // little-endian: the pattern is in the low bits
    StoreFromFloat(&room, dtype, 0, value);
    return room;
  }
};

class NarrowDType : public ::testing::TestWithParam<Format> {};

TEST_P(NarrowDType, EveryPatternDecodesByDefinition) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern < 1u << format.bits(); ++pattern) {
    const float expected = format.Decode(pattern);
    const float value = format.Load(pattern);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << pattern;
    } else {
      EXPECT_EQ(value, expected) << pattern;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << pattern;
    }
  }
}

TEST_P(NarrowDType, EveryPatternSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern < 1u << format.bits(); ++pattern) {
    const float value = format.Load(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(format.Load(format.Store(value)))) << pattern;
    } else {
      EXPECT_EQ(format.Store(value), pattern);
    }
  }
}

TEST_P(NarrowDType, RoundsToNearestAndTiesToEven) {
  const Format& format = GetParam();
  for (std::uint32_t low = 0; format.Load(low) < format.largest; ++low) {
    const float a = format.Load(low);
    const float b = format.Load(low + 1);
    const float middle = static_cast<float>((double{a} + double{b}) / 2.0);
    const std::uint32_t even = low % 2 == 0 ? low : low + 1;
    for (const std::uint32_t sign : {0u, format.sign_bit()}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(format.Store(s * middle), sign | even) << a << " " << b;
      EXPECT_EQ(format.Store(s * std::nextafter(middle, a)), sign | low) << a << " " << b;
      EXPECT_EQ(format.Store(s * std::nextafter(middle, b)), sign | (low + 1)) << a << " " << b;
    }
  }
}

TEST_P(NarrowDType, Ends) {
  const Format& format = GetParam();
  EXPECT_EQ(format.Load(format.Store(format.largest)), format.largest);
  EXPECT_EQ(format.Load(1), format.smallest);
  const float infinity = std::numeric_limits<float>::infinity();
  const float overflow = format.finite_only ? format.largest : infinity;
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(format.Load(format.Store(sign * infinity)), sign * overflow);
    EXPECT_EQ(format.Load(format.Store(sign * std::numeric_limits<float>::max())), sign * overflow);
    EXPECT_TRUE(std::isnan(format.Load(format.Store(std::copysign(std::nanf(""), sign)))));
    EXPECT_EQ(format.Store(sign * std::numeric_limits<float>::denorm_min()),
              sign > 0 ? 0u : format.sign_bit());
    EXPECT_EQ(format.Store(sign * 0.0f), sign > 0 ? 0u : format.sign_bit());
  }
}

// Between the largest value and the one that would follow it.
TEST_P(NarrowDType, Overflow) {
  const Format& format = GetParam();
  const float below = format.Load(format.Store(format.largest) - 1);
  const float middle = format.largest + (format.largest - below) / 2.0f;
  EXPECT_EQ(format.Load(format.Store(std::nextafter(middle, 0.0f))), format.largest);
  EXPECT_EQ(format.Load(format.Store(middle)),
            format.finite_only ? format.largest : std::numeric_limits<float>::infinity());
}

INSTANTIATE_TEST_SUITE_P(
    All, NarrowDType,
    ::testing::Values(Format{"float16", DType::kFloat16, 5, 10, false, 65504.0f, 0x1p-24f},
                      Format{"bfloat16", DType::kBFloat16, 8, 7, false, 0x1.FEp127f, 0x1p-133f},
                      Format{"e4m3", DType::kFloat8E4M3, 4, 3, true, 448.0f, 0x1p-9f},
                      Format{"e5m2", DType::kFloat8E5M2, 5, 2, false, 57344.0f, 0x1p-16f}),
    [](const auto& test) { return test.param.name; });

TEST(DType, NaNSignallingPayloadIsNotLost) {
  // A NaN whose payload lies in the bits that bfloat16 drops must not become infinity.
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(BitCast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(BitCast<float>(0x7F800001u)))));
}

TEST(DType, LoadAndStoreUseTheIndex) {
  std::vector<float> floats = {1.0f, 2.0f, 3.0f};
  EXPECT_EQ(LoadAsFloat(floats.data(), DType::kFloat32, 2), 3.0f);
  StoreFromFloat(floats.data(), DType::kFloat32, 1, -7.5f);
  EXPECT_EQ(floats[1], -7.5f);
  std::vector<std::int32_t> ints = {-1, 5};
  EXPECT_EQ(LoadAsFloat(ints.data(), DType::kInt32, 0), -1.0f);
  std::vector<std::uint8_t> bools = {0, 1, 255};
  EXPECT_EQ(LoadAsFloat(bools.data(), DType::kBool, 0), 0.0f);
  EXPECT_EQ(LoadAsFloat(bools.data(), DType::kBool, 2), 1.0f);
}

}  // namespace
}  // namespace flashwok
