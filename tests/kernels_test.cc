// Every case, on every kernel of the registry, against the float64 oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "flashwok/attention.h"
#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cases.h"
#include "tests/problem_data.h"
#include "tests/tolerance.h"

namespace flashwok::test {
namespace {

class KernelTest : public ::testing::TestWithParam<Case> {};

// How much P moves by the rounding of its score, which one plain computation does not bound: the
// worst row is one where two keys happen to nearly tie. A score reaches 4 magnitude^2, its sum of
// head_dim terms rounds by about 2^-25 sqrt(head_dim) of that, and P depends on two scores; four
// such deviations.
double ScoreRounding(const Case& c) {
  if (c.magnitude <= 1.0) return 0.0;
  return 0x1p-20 * c.magnitude * c.magnitude * std::sqrt(static_cast<double>(c.head_dim));
}

TEST_P(KernelTest, ForwardMatchesOracle) {
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  const reference::ForwardResult want = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.pass != Pass::kForward || !kernel.available) continue;
    SCOPED_TRACE(kernel.name);
    data.problem.algorithm = kernel.algorithm;
    Execution execution;
    execution.kernel = kernel.name;
    const PlanResult plan = Plan(data.problem, Pass::kForward, execution);
    if (plan.status.code() == StatusCode::kUnsupported) continue;
    ASSERT_TRUE(plan.status.ok()) << plan.status.message();
    for (int threads : {1, 2}) {
      data.ResetOutputs();
      execution.num_threads = threads;
      const Status status = Forward(data.problem, data.output, execution);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectClose("o", data.output.o, want.o, plain.o,
                  Floor(data.problem.q.dtype) + ScoreRounding(GetParam()));
      ExpectClose("lse", data.output.lse, want.lse, plain.lse, 2e-6);
      EXPECT_EQ(data.GuardError(), "");
    }
  }
}

TEST_P(KernelTest, BackwardMatchesOracle) {
  if (!GetParam().backward) GTEST_SKIP();
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  const Tensor& dout = data.backward.dout;
  const Tensor& dlse = data.backward.dlse;
  const reference::BackwardResult plain = reference::PlainBackward(data.problem, dout, dlse);
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.pass != Pass::kBackward || !kernel.available) continue;
    SCOPED_TRACE(kernel.name);
    data.problem.algorithm = kernel.algorithm;
    Execution execution;
    execution.kernel = kernel.name;
    const PlanResult plan = Plan(data.problem, Pass::kBackward, execution);
    if (plan.status.code() == StatusCode::kUnsupported) continue;
    for (int threads : {1, 2}) {
      data.ResetOutputs();
      execution.num_threads = threads;
      Status status = Forward(data.problem, data.output, execution);
      ASSERT_TRUE(status.ok()) << status.message();
      const reference::BackwardResult want =
          reference::Backward(data.problem, dout, dlse, data.output.o);
      status = Backward(data.problem, data.backward, data.gradients, execution);
      ASSERT_TRUE(status.ok()) << status.message();
      const double floor =
          (data.problem.q.dtype == DType::kFloat32 ? 8e-6 : 1e-4) + ScoreRounding(GetParam());
      ExpectClose("dq", data.gradients.dq, want.dq, plain.dq, floor);
      ExpectClose("dk", data.gradients.dk, want.dk, plain.dk, floor);
      ExpectClose("dv", data.gradients.dv, want.dv, plain.dv, floor);
      if (data.gradients.dbias.present()) {
        ExpectClose("dbias", data.gradients.dbias, want.dbias, plain.dbias, floor);
      }
      EXPECT_EQ(data.GuardError(), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, KernelTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
