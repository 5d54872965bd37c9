// The oracle against cases that can be worked out by hand.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "flashwok/attention.h"

namespace flashwok::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor Floats(std::vector<float>& values, std::initializer_list<std::int64_t> shape) {
  return Tensor::Contiguous(values.data(), DType::kFloat32, shape);
}
Tensor Ints(std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
  return Tensor::Contiguous(values.data(), DType::kInt32, shape);
}

std::vector<float> Zeros(int count) { return std::vector<float>(static_cast<std::size_t>(count)); }

// One head, head_dim 1, v one-hot: a row of O is that row of P.
struct OneHead {
  std::vector<float> q, k, v;
  Problem problem;

  OneHead(std::vector<float> queries, std::vector<float> keys)
      : q(std::move(queries)), k(std::move(keys)), v(k.size() * k.size()) {
    const auto rows = static_cast<std::int64_t>(q.size());
    const auto columns = static_cast<std::int64_t>(k.size());
    for (std::int64_t j = 0; j < columns; ++j) v[j * columns + j] = 1.0f;
    problem.q = Floats(q, {1, rows, 1, 1});
    problem.k = Floats(k, {1, columns, 1, 1});
    problem.v = Floats(v, {1, columns, 1, columns});
  }

  // "110 111": which keys the rows see, where all scores are equal.
  std::string Pattern() const {
    const std::vector<double> p = Forward(problem).o;
    std::string text;
    for (std::size_t n = 0; n < p.size(); ++n) {
      if (n > 0 && n % k.size() == 0) text += ' ';
      text += p[n] > 0.0 ? '1' : '0';
    }
    return text;
  }
};

std::string Visible(int rows, int columns, Causal causal, std::int64_t left, std::int64_t right) {
  OneHead head(Zeros(rows), Zeros(columns));
  head.problem.causal = causal;
  head.problem.window_left = left;
  head.problem.window_right = right;
  return head.Pattern();
}

TEST(Reference, TwoKeys) {
  std::vector<float> q = {1.0f};
  std::vector<float> k = {0.0f, std::log(3.0f)};
  std::vector<float> v = {4.0f, 8.0f};
  Problem problem;
  problem.q = Floats(q, {1, 1, 1, 1});
  problem.k = Floats(k, {1, 2, 1, 1});
  problem.v = Floats(v, {1, 2, 1, 1});
  const ForwardResult result = Forward(problem);
  EXPECT_NEAR(result.o[0], 7.0, 1e-6);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-6);
}

TEST(Reference, CausalKinds) {
  EXPECT_EQ(Visible(3, 3, Causal::kNone, -1, -1), "111 111 111");
  EXPECT_EQ(Visible(3, 3, Causal::kBottomRight, -1, -1), "100 110 111");
  EXPECT_EQ(Visible(3, 3, Causal::kTopLeft, -1, -1), "100 110 111");
  EXPECT_EQ(Visible(2, 4, Causal::kBottomRight, -1, -1), "1110 1111");
  EXPECT_EQ(Visible(2, 4, Causal::kTopLeft, -1, -1), "1000 1100");
  EXPECT_EQ(Visible(4, 2, Causal::kBottomRight, -1, -1), "00 00 10 11");
  EXPECT_EQ(Visible(4, 2, Causal::kTopLeft, -1, -1), "10 11 11 11");
}

TEST(Reference, Windows) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Visible(3, 3, Causal::kNone, 0, 0), "100 010 001");
  EXPECT_EQ(Visible(3, 3, Causal::kNone, -1, 0), "100 110 111");
  EXPECT_EQ(Visible(3, 3, Causal::kNone, 1, -1), "111 111 011");
  EXPECT_EQ(Visible(3, 3, Causal::kNone, largest, largest), "111 111 111");
  EXPECT_EQ(Visible(2, 4, Causal::kNone, 1, 0), "0110 0011");
  EXPECT_EQ(Visible(4, 2, Causal::kNone, 0, 1), "00 10 11 01");
  EXPECT_EQ(Visible(2, 4, Causal::kBottomRight, 1, 5), "0110 0011");
  EXPECT_EQ(Visible(2, 4, Causal::kTopLeft, 0, 5), "1000 0100");
  EXPECT_EQ(Visible(4, 2, Causal::kTopLeft, 1, -1), "10 11 01 00");
}

TEST(Reference, KeyLengthMovesTheDiagonal) {
  OneHead head(Zeros(2), Zeros(4));
  std::vector<std::int32_t> used = {3};
  head.problem.seqused_k = Ints(used, {1});
  EXPECT_EQ(head.Pattern(), "1110 1110");
  head.problem.causal = Causal::kBottomRight;
  EXPECT_EQ(head.Pattern(), "1100 1110");
}

TEST(Reference, MaskKeepsWhereTrue) {
  OneHead head(Zeros(2), Zeros(3));
  std::vector<std::uint8_t> mask = {1, 0, 7, 0, 0, 0};
  head.problem.mask = Tensor::Contiguous(mask.data(), DType::kBool, {1, 1, 2, 3});
  EXPECT_EQ(head.Pattern(), "101 000");
  const ForwardResult result = Forward(head.problem);
  EXPECT_NEAR(result.lse[0], std::log(2.0), 1e-15);
  EXPECT_EQ(result.lse[1], -kInfinity);
}

TEST(Reference, OnlyAnInfiniteBiasHides) {
  OneHead head({1.0f}, {0.0f, 0.0f, kNaN});
  std::vector<float> bias = {0.0f, -50.0f, -std::numeric_limits<float>::infinity()};
  head.problem.bias = Floats(bias, {1, 1, 1, 3});
  head.v[8] = kNaN;  // the value of the key that no row sees
  const ForwardResult result = Forward(head.problem);
  EXPECT_NEAR(result.o[1], std::exp(-50.0), 1e-30);
  EXPECT_EQ(result.o[2], 0.0);
}

TEST(Reference, NaNStaysInTheRowsThatSeeIt) {
  OneHead head({1.0f, 1.0f}, {0.0f, 0.0f});
  head.problem.causal = Causal::kBottomRight;
  head.v[3] = kNaN;  // of key 1, which row 0 does not see
  const ForwardResult result = Forward(head.problem);
  EXPECT_EQ(result.o[0], 1.0);
  EXPECT_EQ(result.o[1], 0.0);
  EXPECT_TRUE(std::isnan(result.o[3]));
}

// Scale, softcap, bias, ALiBi, in this order.
TEST(Reference, ScoreOrder) {
  OneHead head({2.0f, 2.0f}, {3.0f, -1.0f, 0.5f});
  std::vector<float> bias = {0.5f, -1.0f, 2.0f};
  std::vector<float> slope = {0.25f};
  head.problem.softmax_scale = -0.5;
  head.problem.softcap = 2.0;
  head.problem.bias = Floats(bias, {1, 1, 1, 3});
  head.problem.alibi_slopes = Floats(slope, {1});
  const ForwardResult result = Forward(head.problem);
  for (int i = 0; i < 2; ++i) {
    double weight[3];
    double sum = 0.0;
    for (int j = 0; j < 3; ++j) {
      const double capped = 2.0 * std::tanh(-0.5 * 2.0 * head.k[j] / 2.0);
      weight[j] = std::exp(capped + bias[j] - 0.25 * std::abs(i + 1 - j));
      sum += weight[j];
    }
    EXPECT_NEAR(result.lse[i], std::log(sum), 1e-14);
    for (int j = 0; j < 3; ++j) EXPECT_NEAR(result.o[i * 3 + j], weight[j] / sum, 1e-14);
  }
}

TEST(Reference, DefaultScaleIsOneOverRootOfHeadDim) {
  std::vector<float> q = {1.0f, 1.0f, 1.0f, 1.0f};
  std::vector<float> k = {1.0f, 1.0f, 1.0f, 1.0f};
  Problem problem;
  problem.q = Floats(q, {1, 1, 1, 4});
  problem.k = problem.v = Floats(k, {1, 1, 1, 4});
  EXPECT_NEAR(Forward(problem).lse[0], 2.0, 1e-15);
}

TEST(Reference, QueryHeadsShareKeyHeads) {
  std::vector<float> q(6);
  std::vector<float> k(2);
  std::vector<float> v = {10.0f, 20.0f};
  Problem problem;
  problem.q = Floats(q, {1, 1, 6, 1});
  problem.k = Floats(k, {1, 1, 2, 1});
  problem.v = Floats(v, {1, 1, 2, 1});
  EXPECT_EQ(Forward(problem).o, (std::vector<double>{10, 10, 10, 20, 20, 20}));
}

TEST(Reference, VarlenIsEachSequenceAlone) {
  std::vector<float> q = {0.1f, 0.2f, 0.3f};
  std::vector<float> k = {1.0f, 2.0f, 3.0f, 4.0f};
  std::vector<float> v = {5.0f, 6.0f, 7.0f, 8.0f};
  std::vector<std::int32_t> cu_q = {0, 1, 1, 3};
  std::vector<std::int32_t> cu_k = {0, 2, 3, 4};
  Problem varlen;
  varlen.q = Floats(q, {3, 1, 1});
  varlen.k = Floats(k, {4, 1, 1});
  varlen.v = Floats(v, {4, 1, 1});
  varlen.cu_seqlens_q = Ints(cu_q, {4});
  varlen.cu_seqlens_k = Ints(cu_k, {4});
  const ForwardResult all = Forward(varlen);

  Problem first;
  first.q = Floats(q, {1, 1, 1, 1});
  first.k = Floats(k, {1, 2, 1, 1});
  first.v = Floats(v, {1, 2, 1, 1});
  const ForwardResult alone = Forward(first);
  EXPECT_EQ(all.o, (std::vector<double>{alone.o[0], 8.0, 8.0}));
  EXPECT_EQ(all.lse[0], alone.lse[0]);
  EXPECT_EQ(all.lse[2], double{q[2]} * 4.0);
}

TEST(Reference, PagesAreFoundThroughTheTable) {
  std::vector<float> q = {1.0f};
  std::vector<float> k = {kNaN, kNaN, 3.0f, kNaN, 1.0f, 2.0f};  // pages of two keys
  std::vector<std::int32_t> table = {2, 1, -1};
  std::vector<std::int32_t> used = {3};
  Problem paged;
  paged.q = Floats(q, {1, 1, 1, 1});
  paged.k = paged.v = Floats(k, {3, 2, 1, 1});
  paged.page_table = Ints(table, {1, 3});
  paged.seqused_k = Ints(used, {1});
  std::vector<float> flat = {1.0f, 2.0f, 3.0f};
  Problem dense;
  dense.q = paged.q;
  dense.k = dense.v = Floats(flat, {1, 3, 1, 1});
  EXPECT_EQ(Forward(paged).o, Forward(dense).o);
  EXPECT_EQ(Forward(paged).lse, Forward(dense).lse);
}

TEST(Reference, Float8StandsForValueTimesDescale) {
  std::vector<std::uint8_t> one = {0x38};  // 1 in e4m3
  std::vector<std::uint8_t> two = {0x40};
  std::vector<float> q_descale = {3.0f}, k_descale = {0.5f}, v_descale = {0.25f};
  Problem problem;
  problem.q = Tensor::Contiguous(two.data(), DType::kFloat8E4M3, {1, 1, 1, 1});
  problem.k = Tensor::Contiguous(one.data(), DType::kFloat8E4M3, {1, 1, 1, 1});
  problem.v = Tensor::Contiguous(two.data(), DType::kFloat8E4M3, {1, 1, 1, 1});
  problem.q_descale = Floats(q_descale, {1, 1});
  problem.k_descale = Floats(k_descale, {1, 1});
  problem.v_descale = Floats(v_descale, {1, 1});
  const ForwardResult result = Forward(problem);
  EXPECT_EQ(result.lse[0], 3.0);
  EXPECT_EQ(result.o[0], 0.5);
}

TEST(Reference, DropoutDropsByPhiloxAndLeavesLse) {
  OneHead head(Zeros(3), Zeros(9));
  head.problem.dropout_p = 0.5;
  head.problem.dropout_seed = 0x123456789ABCDEF0;
  head.problem.dropout_offset = 0xFEDCBA9876543210;
  const ForwardResult result = Forward(head.problem);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(result.lse[i], std::log(9.0), 1e-14);
    for (std::uint32_t j = 0; j < 9; ++j) {
      const PhiloxCounter words =
          Philox4x32({j / 4, i, 0, 0x76543210u}, {0x9ABCDEF0u, 0x12345678u ^ 0xFEDCBA98u});
      const double expected = words[j % 4] >= 0x80000000u ? 2.0 / 9.0 : 0.0;
      EXPECT_NEAR(result.o[i * 9 + j], expected, 1e-15);
    }
  }
}

TEST(Reference, EmptyShapes) {
  std::vector<float> q(2);
  std::vector<float> none;
  Problem problem;
  problem.q = Floats(q, {1, 2, 1, 1});
  problem.k = problem.v = Floats(none, {1, 0, 1, 1});
  const ForwardResult result = Forward(problem);
  EXPECT_EQ(result.o, (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(result.lse, (std::vector<double>{-kInfinity, -kInfinity}));
  problem.q = Floats(none, {1, 0, 1, 1});
  EXPECT_TRUE(Forward(problem).o.empty());
  problem.q = problem.k = problem.v = Floats(none, {0, 5, 1, 1});
  EXPECT_TRUE(Forward(problem).o.empty());
}

}  // namespace
}  // namespace flashwok::reference
