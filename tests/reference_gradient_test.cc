// Every gradient of the oracle against finite differences of its own forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/reference.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

class Gradient : public ::testing::TestWithParam<Case> {};

// sum(O * dO) + sum(lse * dlse), of the rows that see a key.
double Loss(const ProblemData& data) {
  const reference::ForwardResult result = reference::Forward(data.problem);
  const std::vector<double> dout = Read(data.backward.dout);
  const std::vector<double> dlse = Read(data.backward.dlse);
  double loss = 0.0;
  for (std::size_t n = 0; n < dout.size(); ++n) loss += result.o[n] * dout[n];
  for (std::size_t n = 0; n < dlse.size(); ++n) {
    if (std::isfinite(result.lse[n])) loss += result.lse[n] * dlse[n];
  }
  return loss;
}

void CheckTensor(const char* name, const ProblemData& data, const Tensor& tensor,
                 const std::vector<double>& gradient) {
  SCOPED_TRACE(name);
  ASSERT_EQ(static_cast<std::int64_t>(gradient.size()), tensor.num_elements());
  auto* values = static_cast<float*>(tensor.data);
  std::size_t n = 0;
  ForEachElement(tensor, [&](std::int64_t offset) {
    const float value = values[offset];
    const double expected = gradient[n++];
    if (!std::isfinite(value)) {
      EXPECT_EQ(expected, 0.0) << n - 1;
      return;
    }
    const float up = value + 0x1p-10f;
    const float down = value - 0x1p-10f;
    values[offset] = up;
    const double loss_up = Loss(data);
    values[offset] = down;
    const double loss_down = Loss(data);
    values[offset] = value;
    const double slope = (loss_up - loss_down) / (double{up} - double{down});
    EXPECT_NEAR(slope, expected, 2e-5 * (1.0 + std::abs(expected))) << n - 1;
  });
}

TEST_P(Gradient, EqualsFiniteDifferences) {
  const ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  const reference::BackwardResult result =
      reference::Backward(data.problem, data.backward.dout, data.backward.dlse);
  CheckTensor("dq", data, data.problem.q, result.dq);
  CheckTensor("dk", data, data.problem.k, result.dk);
  CheckTensor("dv", data, data.problem.v, result.dv);
  if (data.problem.bias.present()) CheckTensor("dbias", data, data.problem.bias, result.dbias);
}

Case Tiny(Case c) {
  if (c.lengths_q.empty()) {
    c.seqlen_q = 4;
    c.seqlen_k = c.layout == Layout::kPackedQkv ? 4 : 6;
  }
  c.head_dim = 3;
  c.head_dim_v = c.layout == Layout::kPackedQkv ? 3 : 2;
  return c;
}

const Case kTinyCases[] = {
    Tiny({.name = "plain"}),
    Tiny({.name = "causal", .causal = Causal::kBottomRight}),
    Tiny({.name = "top_left_window", .causal = Causal::kTopLeft, .window_left = 1}),
    Tiny({.name = "gqa", .num_heads = 4, .num_heads_kv = 2}),
    Tiny({.name = "scale_negative", .softmax_scale = -0.7}),
    Tiny({.name = "softcap", .softcap = 0.8}),
    Tiny({.name = "dlse", .dlse = true}),
    Tiny({.name = "dropout", .dropout_p = 0.4, .dlse = true}),
    Tiny({.name = "bias_full", .bias = Axes::kFull}),
    Tiny({.name = "bias_heads", .bias = Axes::kHeads}),
    Tiny({.name = "bias_scores", .bias = Axes::kScores}),
    Tiny({.name = "bias_keys_hidden", .bias = Axes::kKeys, .bias_hides = true}),
    Tiny({.name = "mask_full", .mask = Axes::kFull, .dlse = true}),
    Tiny({.name = "alibi", .alibi = Alibi::kBatchHeads}),
    Tiny({.name = "seqused", .causal = Causal::kBottomRight, .seqused_k = {2, 5}}),
    Tiny({.name = "packed", .layout = Layout::kPackedQkv}),
    Tiny({.name = "varlen_everything",
          .num_heads = 4,
          .num_heads_kv = 2,
          .causal = Causal::kBottomRight,
          .window_left = 3,
          .softmax_scale = 0.9,
          .softcap = 1.5,
          .bias = Axes::kHeads,
          .mask = Axes::kFull,
          .alibi = Alibi::kHeads,
          .dropout_p = 0.3,
          .lengths_q = {3, 0, 2},
          .lengths_k = {4, 1, 3},
          .seqused_k = {3, 1, 3},
          .layout = Layout::kSliced,
          .dlse = true}),
};

INSTANTIATE_TEST_SUITE_P(All, Gradient, ::testing::ValuesIn(kTinyCases),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
