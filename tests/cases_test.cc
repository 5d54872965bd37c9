// The case list itself: every case is valid, the oracle and the plain computation agree on it, and
// the guards hold.
#include "tests/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "api/validate.h"
#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/problem_data.h"
#include "tests/tolerance.h"

namespace flashwok::test {
namespace {

class EveryCase : public ::testing::TestWithParam<Case> {};

// Both not finite in the same way, or near each other.
void ExpectNear(const char* name, const std::vector<double>& plain,
                const std::vector<double>& exact, double tolerance) {
  ASSERT_EQ(plain.size(), exact.size()) << name;
  double largest = 1.0;
  for (double value : exact) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t n = 0; n < exact.size(); ++n) {
    if (std::isfinite(exact[n])) {
      ASSERT_NEAR(plain[n], exact[n], tolerance * largest) << name << " " << n;
    } else if (std::isnan(exact[n])) {
      ASSERT_TRUE(std::isnan(plain[n])) << name << " " << n;
    } else {
      ASSERT_EQ(plain[n], exact[n]) << name << " " << n;
    }
  }
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 1e-5;
    case DType::kFloat16: return 1e-2;
    default: return 6e-2;
  }
}

TEST_P(EveryCase, IsValid) {
  const ProblemData data(GetParam());
  EXPECT_EQ(Validate(data.problem, Pass::kForward).message(), "");
  EXPECT_EQ(ValidateForwardOutput(data.problem, data.output).message(), "");
  EXPECT_EQ(ValidatePointers(data.problem).message(), "");
  EXPECT_EQ(ValidatePointers(data.output).message(), "");
  if (!GetParam().backward) return;
  EXPECT_EQ(Validate(data.problem, Pass::kBackward).message(), "");
  EXPECT_EQ(ValidateBackward(data.problem, data.backward, data.gradients).message(), "");
  EXPECT_EQ(ValidatePointers(data.backward, data.gradients).message(), "");
}

TEST_P(EveryCase, PlainComputationIsNearTheOracle) {
  const Case& c = GetParam();
  const ProblemData data(c);
  SCOPED_TRACE(data.Describe());
  const double tolerance = Tolerance(c.dtype) * ScoreSize(c);
  const reference::ForwardResult exact = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  ExpectNear("o", plain.o, exact.o, tolerance);
  ExpectNear("lse", plain.lse, exact.lse, tolerance);
  if (!c.nan_row) {
    for (double value : exact.o) ASSERT_TRUE(std::isfinite(value));
  }
  if (c.backward) {
    const auto d_exact = reference::Backward(data.problem, data.backward.dout, data.backward.dlse);
    const auto d_plain =
        reference::PlainBackward(data.problem, data.backward.dout, data.backward.dlse);
    ExpectNear("dq", d_plain.dq, d_exact.dq, 2 * tolerance);
    ExpectNear("dk", d_plain.dk, d_exact.dk, 2 * tolerance);
    ExpectNear("dv", d_plain.dv, d_exact.dv, 2 * tolerance);
    ExpectNear("dbias", d_plain.dbias, d_exact.dbias, 2 * tolerance);
    for (double value : d_exact.dk) ASSERT_TRUE(std::isfinite(value));
  }
  EXPECT_EQ(data.GuardError(), "");
}

INSTANTIATE_TEST_SUITE_P(All, EveryCase, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

TEST(Cases, NamesAreUnique) {
  std::set<std::string> names;
  for (const Case& c : Cases()) EXPECT_TRUE(names.insert(c.name).second) << c.name;
}

TEST(ProblemData, SeesAWriteBetweenTheElements) {
  Case c = {.name = "guards"};
  c.layout = Layout::kSliced;
  ProblemData data(c);
  auto* o = static_cast<float*>(data.output.o.data);
  o[0] = 1.0f;
  EXPECT_EQ(data.GuardError(), "");
  o[c.head_dim] = 1.0f;  // past the end of the first row
  EXPECT_NE(data.GuardError(), "");
  data.ResetOutputs();
  EXPECT_EQ(data.GuardError(), "");
  EXPECT_TRUE(std::isnan(o[0]));
  static_cast<float*>(data.problem.q.data)[0] += 1.0f;  // an input
  EXPECT_NE(data.GuardError(), "");
}

TEST(ProblemData, IsReproducible) {
  const Case c = {.name = "again", .bias = Axes::kFull};
  EXPECT_EQ(Read(ProblemData(c, 7).problem.bias), Read(ProblemData(c, 7).problem.bias));
  EXPECT_NE(Read(ProblemData(c, 7).problem.bias), Read(ProblemData(c, 8).problem.bias));
}

}  // namespace
}  // namespace flashwok::test
