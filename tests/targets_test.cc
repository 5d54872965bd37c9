// The kernels on each instruction set that this machine has, not on the best one alone.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>

#include "flashwok/attention.h"
#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cases.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

double WorstError(const Tensor& got, const std::vector<double>& want) {
  const std::vector<double> values = Read(got);
  double worst = 0.0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double error = std::abs(values[n] - want[n]);
    if (std::isfinite(want[n])) worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

double PlainError(const std::vector<double>& plain, const std::vector<double>& want) {
  double worst = 0.0;
  for (std::size_t n = 0; n < want.size(); ++n) {
    if (std::isfinite(want[n])) worst = std::max(worst, std::abs(plain[n] - want[n]));
  }
  return worst;
}

class TargetsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_F(TargetsTest, ForwardMatchesOracleOnEach) {
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const Case& c : Cases()) {
      if (c.magnitude > 1.0 || c.nan_row) continue;
      ProblemData data(c);
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + ", " + data.Describe());
      const reference::ForwardResult want = reference::Forward(data.problem);
      const reference::ForwardResult plain = reference::PlainForward(data.problem);
      data.problem.algorithm = Algorithm::kV3;
      const Status status = Forward(data.problem, data.output);
      ASSERT_TRUE(status.ok()) << status.message();
      const double floor = data.problem.q.dtype == DType::kFloat32 ? 2e-6 : 2e-5;
      EXPECT_LE(WorstError(data.output.o, want.o), 2.0 * PlainError(plain.o, want.o) + floor);
    }
  }
}

}  // namespace
}  // namespace flashwok::test
