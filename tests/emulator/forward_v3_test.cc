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

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV3Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
