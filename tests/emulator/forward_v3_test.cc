// Forward V3 as compiled for Hopper, on the emulator, against the float64 oracle.
#include <gtest/gtest.h>

#include "cuda/forward_v3_setup.h"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulated_v3.h"

namespace flashwok::test {
namespace {

class ForwardV3Test : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardV3Test, MatchesOracle) {
  ProblemData data(GetParam());
  if (!cuda::ForwardV3Objection(flashwok::Layout(data.problem)).empty()) GTEST_SKIP();
  // Every row of the table that can hold the problem and is as narrow as the chosen one.
  const flashwok::Layout layout(data.problem);
  const cuda::ForwardV3Config& chosen = cuda::kForwardV3Configs[cuda::ForwardV3RowOf(layout)];
  for (int row = 0; row < cuda::kForwardV3Rows; ++row) {
    const cuda::ForwardV3Config& config = cuda::kForwardV3Configs[row];
    if (config.head_dim != chosen.head_dim || config.head_dim_v != chosen.head_dim_v) continue;
    SCOPED_TRACE("row " + std::to_string(row));
    CheckForward(data, [&](const emulator::Options& options) {
      RunEmulatedV3(data.problem, data.output, {.row = row, .seed = options.seed});
    });
  }
}

// What a query sees decides, not how many keys there are, nor how many queries.
TEST(ForwardV3, NarrowWindowsTakeTheRowOfFewKeys) {
  const auto row = [](std::int64_t seqlen, int window_left, std::int64_t seqlen_q) {
    const ProblemData data({.name = "row",
                            .dtype = DType::kBFloat16,
                            .batch = 1,
                            .seqlen_q = seqlen_q,
                            .seqlen_k = seqlen,
                            .head_dim = 64,
                            .causal = Causal::kBottomRight,
                            .window_left = window_left,
                            .backward = false});
    return cuda::ForwardV3RowOf(flashwok::Layout(data.problem));
  };
  EXPECT_EQ(row(9000, 128, 1), row(300, -1, 1));
  EXPECT_EQ(row(9000, 128, 700), row(300, -1, 1));
  EXPECT_NE(row(9000, 4000, 1), row(300, -1, 1));
  EXPECT_NE(row(9000, -1, 1), row(9000, 4000, 1));
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV3Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
