#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "flashwok/attention.h"
#include "flashwok/c_api.h"
#include "tests/plain_structs.h"

namespace flashwok {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 7, kHeads = 6, kHeadsKv = 3, kDim = 5;
constexpr std::int64_t kCount = kBatch * kLength * kHeads * kDim;
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Quantized {
  explicit Quantized(DType dtype) : values(kCount), descale(kBatch * kHeadsKv) {
    to = Tensor::Contiguous(values.data(), dtype, {kBatch, kLength, kHeads, kDim});
    scale = Tensor::Contiguous(descale.data(), DType::kFloat32, {kBatch, kHeadsKv});
  }
  float Value(std::int64_t n) const { return LoadAsFloat(values.data(), to.dtype, n); }
  float Scale(std::int64_t n) const {  // of element n
    const std::int64_t b = n / (kLength * kHeads * kDim), h = n / kDim % kHeads;
    return descale[static_cast<std::size_t>(b * kHeadsKv + h / (kHeads / kHeadsKv))];
  }

  std::vector<std::uint8_t> values;
  std::vector<float> descale;
  Tensor to, scale;
};

std::vector<float> Normal() {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0f, 30.0f);
  std::vector<float> x(kCount);
  for (float& value : x) value = normal(engine);
  return x;
}

Tensor View(std::vector<float>& x) {
  return Tensor::Contiguous(x.data(), DType::kFloat32, {kBatch, kLength, kHeads, kDim});
}

class Quantize : public ::testing::TestWithParam<DType> {};

TEST_P(Quantize, IsTheNearestValueAndThePeakIsTheLargest) {
  std::vector<float> x = Normal();
  Quantized q(GetParam());
  ASSERT_EQ(QuantizeFloat8(View(x), q.to, q.scale).message(), "");
  const bool e4m3 = GetParam() == DType::kFloat8E4M3;
  const float largest = e4m3 ? 448.0f : 57344.0f;
  const float half_step = e4m3 ? 1.0f / 16 : 1.0f / 8;  // of a normal value, relative
  const float smallest = e4m3 ? 0x1p-9f : 0x1p-16f;
  float peak = 0.0f;
  for (std::int64_t n = 0; n < kCount; ++n) {
    const float exact = x[static_cast<std::size_t>(n)] / q.Scale(n);
    EXPECT_LE(std::abs(q.Value(n) - exact), std::max(half_step * std::abs(exact), smallest / 2));
    peak = std::max(peak, std::abs(q.Value(n)));
  }
  EXPECT_EQ(peak, largest);
}

TEST_P(Quantize, EachScaleIsOfItsOwnHeads) {
  std::vector<float> x(kCount, 1.0f);
  x[kDim * 2] = 128.0f;  // the first row's head 2, of key head 1
  Quantized q(GetParam());
  ASSERT_TRUE(QuantizeFloat8(View(x), q.to, q.scale).ok());
  for (std::size_t n = 0; n < q.descale.size(); ++n) {
    EXPECT_EQ(q.descale[n] / q.descale[0], n == 1 ? 128.0f : 1.0f) << n;
  }
}

TEST_P(Quantize, WhatIsNotFiniteScalesNothing) {
  std::vector<float> x(kCount, 2.0f);
  x[0] = kInf, x[1] = -kInf, x[2] = std::nanf("");
  Quantized q(GetParam());
  ASSERT_TRUE(QuantizeFloat8(View(x), q.to, q.scale).ok());
  const bool e4m3 = GetParam() == DType::kFloat8E4M3;
  EXPECT_EQ(q.Value(3), e4m3 ? 448.0f : 57344.0f);
  EXPECT_EQ(q.Value(0), e4m3 ? 448.0f : kInf);
  EXPECT_EQ(q.Value(1), e4m3 ? -448.0f : -kInf);
  EXPECT_TRUE(std::isnan(q.Value(2)));
  x.assign(kCount, 0.0f);
  ASSERT_TRUE(QuantizeFloat8(View(x), q.to, q.scale).ok());
  EXPECT_EQ(q.descale, std::vector<float>(kBatch * kHeadsKv, 1.0f));
}

TEST_P(Quantize, AnyStridesAndTheCFace) {
  std::vector<float> x = Normal();
  Quantized want(GetParam()), got(GetParam());
  ASSERT_TRUE(QuantizeFloat8(View(x), want.to, want.scale).ok());
  // The same elements, heads before rows.
  std::vector<float> turned(kCount);
  Tensor from = View(turned);
  from.strides = {kLength * kHeads * kDim, kDim, kLength * kDim, 1};
  for (std::int64_t n = 0; n < kCount; ++n) {
    const std::int64_t b = n / (kLength * kHeads * kDim), i = n / (kHeads * kDim) % kLength;
    const std::int64_t h = n / kDim % kHeads, c = n % kDim;
    turned[static_cast<std::size_t>(b * from.strides[0] + i * from.strides[1] +
                                    h * from.strides[2] + c)] = x[static_cast<std::size_t>(n)];
  }
  const flashwok_tensor c_x = test::Plain(from), c_values = test::Plain(got.to),
                        c_scale = test::Plain(got.scale);
  EXPECT_EQ(flashwok_quantize_float8(&c_x, &c_values, &c_scale, nullptr, 0), FLASHWOK_STATUS_OK);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.descale, want.descale);
}

INSTANTIATE_TEST_SUITE_P(Float8, Quantize,
                         ::testing::Values(DType::kFloat8E4M3, DType::kFloat8E5M2),
                         [](const auto& test) { return std::string(Name(test.param)); });

TEST(QuantizeRefuses, WhatDoesNotFit) {
  std::vector<float> x = Normal();
  Quantized q(DType::kFloat8E4M3);
  Tensor other = q.to;
  other.dtype = DType::kBFloat16;
  EXPECT_EQ(QuantizeFloat8(View(x), other, q.scale).message(),
            "values: dtype is bfloat16, must be float8_e4m3 or float8_e5m2");
  std::vector<float> scales(8);
  EXPECT_EQ(QuantizeFloat8(View(x), q.to,
                           Tensor::Contiguous(scales.data(), DType::kFloat32, {kBatch, 4}))
                .message(),
            "descale: num_heads_kv is 4, must divide num_heads of x, 6");
  other = q.to;
  other.data = x.data();
  EXPECT_EQ(QuantizeFloat8(View(x), other, q.scale).message(),
            "values: overlaps x in memory, must be apart from it");
  other = View(x);
  other.device.type = DeviceType::kCuda;
  EXPECT_NE(QuantizeFloat8(other, q.to, q.scale).message(), "");
}

}  // namespace
}  // namespace flashwok
