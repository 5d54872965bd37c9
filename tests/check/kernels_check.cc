// For builds without the tests proper: every case on each algorithm, forward and backward, against
// the float64 oracle. kernels_check [threads] prints what is wrong; exit code 1 if anything is.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
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

// Runs one case on every algorithm and counts what is wrong.
class Check {
 public:
  explicit Check(const Case& c)
      : case_(c),
        data_(c, kSeed),
        forward_(reference::Forward(data_.problem)),
        plain_forward_(reference::PlainForward(data_.problem)) {
    if (!c.backward) return;
    const BackwardInput& input = data_.backward;
    plain_backward_ = reference::PlainBackward(data_.problem, input.dout, input.dlse);
  }

  void Run(Algorithm algorithm, int num_threads) {
    const bool splits = algorithm == Algorithm::kV2 || algorithm == Algorithm::kV3;
    data_.problem.algorithm = algorithm;
    data_.problem.num_splits = splits && num_threads > 1 ? num_threads : 0;
    data_.ResetOutputs();
    Execution execution;
    execution.num_threads = num_threads;
    Status status = Forward(data_.problem, data_.output, execution);
    if (status.code() == StatusCode::kUnsupported) return;
    Require(status.ok(), status.message());
    const bool wide = data_.problem.q.dtype == DType::kFloat32;
    Compare("o", data_.output.o, forward_.o, plain_forward_.o, wide ? 2e-6 : 2e-5);
    Compare("lse", data_.output.lse, forward_.lse, plain_forward_.lse, 2e-6);
    if (case_.backward) {
      backward_ = reference::Backward(data_.problem, data_.backward.dout, data_.backward.dlse,
                                      data_.output.o);
      status = Backward(data_.problem, data_.backward, data_.gradients, execution);
      Require(status.ok(), status.message());
      CompareGradients(wide ? 1e-5 : 1e-4);
    }
    const std::string guard = data_.GuardError();
    Require(guard.empty(), guard);
    ++runs_;
  }

  int runs() const { return runs_; }
  int wrong() const { return wrong_; }

 private:
  void CompareGradients(double floor) {
    Compare("dq", data_.gradients.dq, backward_.dq, plain_backward_.dq, floor);
    Compare("dk", data_.gradients.dk, backward_.dk, plain_backward_.dk, floor);
    Compare("dv", data_.gradients.dv, backward_.dv, plain_backward_.dv, floor);
    if (!data_.problem.bias.present()) return;
    Compare("dbias", data_.gradients.dbias, backward_.dbias, plain_backward_.dbias, floor);
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
  const reference::ForwardResult forward_, plain_forward_;
  reference::BackwardResult backward_, plain_backward_;
  int runs_ = 0;
  int wrong_ = 0;
};

int Main(int num_threads) {
  int runs = 0;
  int wrong = 0;
  for (const Case& c : Cases()) {
    if (c.magnitude > 1.0) continue;  // their bound is the tests' own
    Check check(c);
    for (Algorithm algorithm :
         {Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
      check.Run(algorithm, num_threads);
    }
    runs += check.runs();
    wrong += check.wrong();
  }
  std::printf("%s: %d runs, %d wrong\n", CpuTargets().front().c_str(), runs, wrong);
  return wrong == 0 && runs > 0 ? 0 : 1;
}

}  // namespace
}  // namespace flashwok::test

int main(int argc, char** argv) { return flashwok::test::Main(argc > 1 ? std::atoi(argv[1]) : 1); }
