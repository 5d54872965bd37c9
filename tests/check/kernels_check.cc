// For machines that the tests proper are not built for: every case on each algorithm, forward and
// backward, against the float64 oracle. Prints what is wrong; exit code 1 if anything is.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "flashwok/attention.h"
#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cases.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

constexpr std::uint64_t kSeed = 1;

// The worst error over the finite values, relative to the largest of them or to 1.
double Error(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0.0;
  double largest = 1.0;
  for (std::size_t n = 0; n < want.size(); ++n) {
    if (!std::isfinite(want[n])) continue;
    const double error = std::abs(got[n] - want[n]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    largest = std::max(largest, std::abs(want[n]));
  }
  return worst / largest;
}

// Runs one case on one algorithm and counts what is wrong.
class Check {
 public:
  Check(const Case& c, Algorithm algorithm) : case_(c), data_(c, kSeed) {
    data_.problem.algorithm = algorithm;
  }

  int Run() {
    const Status status = Forward(data_.problem, data_.output);
    if (status.code() == StatusCode::kUnsupported) return 0;
    Require(status.ok(), status.message());
    const auto want = reference::Forward(data_.problem);
    const auto plain = reference::PlainForward(data_.problem);
    const bool wide = data_.problem.q.dtype == DType::kFloat32;
    Compare("o", data_.output.o, want.o, plain.o, wide ? 2e-6 : 2e-5);
    Compare("lse", data_.output.lse, want.lse, plain.lse, 2e-6);
    if (case_.backward) RunBackward(wide ? 1e-5 : 1e-4);
    const std::string guard = data_.GuardError();
    Require(guard.empty(), guard);
    return wrong_;
  }

 private:
  void RunBackward(double floor) {
    const Status status = Backward(data_.problem, data_.backward, data_.gradients);
    Require(status.ok(), status.message());
    const BackwardInput& input = data_.backward;
    const auto want = reference::Backward(data_.problem, input.dout, input.dlse);
    const auto plain = reference::PlainBackward(data_.problem, input.dout, input.dlse);
    Compare("dq", data_.gradients.dq, want.dq, plain.dq, floor);
    Compare("dk", data_.gradients.dk, want.dk, plain.dk, floor);
    Compare("dv", data_.gradients.dv, want.dv, plain.dv, floor);
    if (data_.problem.bias.present()) {
      Compare("dbias", data_.gradients.dbias, want.dbias, plain.dbias, floor);
    }
  }

  void Compare(const char* name, const Tensor& got, const std::vector<double>& want,
               const std::vector<double>& plain, double floor) {
    const double error = Error(Read(got), want);
    const double bound = 2.0 * Error(plain, want) + floor;
    Require(error <= bound,
            name + (": error " + std::to_string(error) + " above " + std::to_string(bound)));
  }

  void Require(bool holds, const std::string& message) {
    if (holds) return;
    ++wrong_;
    std::printf("%s, %s: %s\n", case_.name.c_str(), Name(data_.problem.algorithm), message.c_str());
  }

  const Case& case_;
  ProblemData data_;
  int wrong_ = 0;
};

int Main() {
  int runs = 0;
  int wrong = 0;
  for (const Case& c : Cases()) {
    if (c.magnitude > 1.0) continue;  // their bound is the tests' own
    for (Algorithm algorithm :
         {Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
      wrong += Check(c, algorithm).Run();
      ++runs;
    }
  }
  std::printf("%s: %d runs, %d wrong\n", CpuTargets().front().c_str(), runs, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace flashwok::test

int main() { return flashwok::test::Main(); }
