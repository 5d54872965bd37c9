// The bytes and FLOPs that a run shows its Observer equal the formulas, for every case, with its
// masks, without any and with others, and for every kernel.
#include "common/io_model.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/plan.h"
#include "common/io_model_backward.h"
#include "flashwok/attention.h"
#include "tests/cases.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

class Counter : public Observer {
 public:
  void OnEvent(const Event& event) override {
    const std::lock_guard lock(mutex_);
    if (event.kind == EventKind::kLoad) traffic.Load(event.role, event.bytes);
    if (event.kind == EventKind::kStore) traffic.Store(event.role, event.bytes);
    traffic.flops += event.flops;
  }
  io_model::Traffic traffic;

 private:
  std::mutex mutex_;
};

struct Variant {
  std::string name, kernel;
  Problem problem;
};

// The problem as the case has it, without a mask, and under a causal window; on every kernel of
// the pass.
std::vector<Variant> Variants(const Problem& problem, Pass pass) {
  Problem plain = problem;
  plain.mask = {};
  plain.causal = Causal::kNone;
  plain.window_left = plain.window_right = -1;
  Problem window = plain;
  window.causal = Causal::kBottomRight;
  window.window_left = 40;
  std::vector<Variant> variants;
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.pass != pass) continue;
    for (const auto& [name, masked] : {std::pair{"own masks", problem}, std::pair{"no mask", plain},
                                       std::pair{"causal window", window}}) {
      variants.push_back({kernel.name + ", " + name, kernel.name, masked});
      variants.back().problem.algorithm = kernel.algorithm;
    }
  }
  return variants;
}

// Small tiles, and those that the kernel chooses.
std::vector<Execution> Executions(const std::string& kernel) {
  Execution small;
  small.kernel = kernel;
  small.num_threads = 2;
  small.tile_q = 36;
  small.tile_kv = 32;
  Execution chosen;
  chosen.kernel = kernel;
  chosen.num_threads = 1;
  return {small, chosen};
}

// Runs `call` under an observer and holds what it saw against `formula`.
template <typename Call, typename Formula>
void ExpectCounted(const Problem& problem, Pass pass, Execution execution, const Call& call,
                   const Formula& formula) {
  const Choice choice = Choose(problem, pass, execution);
  if (choice.plan.status.code() == StatusCode::kUnsupported) return;
  Counter counter;
  execution.observer = &counter;
  const Status status = call(execution);
  ASSERT_TRUE(status.ok()) << status.message();
  const io_model::Traffic want = formula(flashwok::Layout(problem), ModelTiles(choice, problem));
  EXPECT_EQ(counter.traffic.load, want.load);
  EXPECT_EQ(counter.traffic.store, want.store);
  EXPECT_EQ(counter.traffic.flops, want.flops);
}

class IoModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(IoModelTest, ForwardCountedEqualsFormula) {
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  for (auto& [name, kernel, problem] : Variants(data.problem, Pass::kForward)) {
    const Algorithm algorithm = problem.algorithm;
    const bool splits = algorithm == Algorithm::kV2 || algorithm == Algorithm::kV3;
    for (bool optional : {false, true}) {
      SCOPED_TRACE(name + (optional ? ", with lse" : ""));
      ForwardOutput output;
      output.o = data.output.o;
      if (optional) {
        output.lse = data.output.lse;
        if (algorithm == Algorithm::kV1) output.row_max = data.row_max;
        if (algorithm == Algorithm::kV1) output.row_sum = data.row_sum;
        if (splits) problem.num_splits = 3;
      }
      for (const Execution& execution : Executions(kernel)) {
        std::int64_t read = -1, written = -1;
        ExpectCounted(
            problem, Pass::kForward, execution,
            [&](const Execution& e) {
              EXPECT_TRUE(ForwardBytes(problem, output, e, &read, &written).ok());
              return Forward(problem, output, e);
            },
            [&](const auto& layout, const io_model::Tiles& tiles) {
              const auto want = io_model::ForwardTraffic(layout, algorithm, tiles, output);
              EXPECT_EQ(read, want.bytes_read());
              EXPECT_EQ(written, want.bytes_written());
              return want;
            });
      }
    }
  }
}

TEST_P(IoModelTest, BackwardCountedEqualsFormula) {
  if (!GetParam().backward) GTEST_SKIP();
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  for (const auto& [name, kernel, problem] : Variants(data.problem, Pass::kBackward)) {
    const Algorithm algorithm = problem.algorithm;
    ForwardOutput output = data.output;
    if (algorithm == Algorithm::kV1) {
      output.row_max = data.row_max;
      output.row_sum = data.row_sum;
    }
    ASSERT_TRUE(Forward(problem, output).ok());
    for (bool optional : {false, true}) {
      SCOPED_TRACE(name + (optional ? ", with dBias, m and l" : ""));
      BackwardInput input = data.backward;
      Gradients gradients = data.gradients;
      if (optional) {
        input.row_max = output.row_max;
        input.row_sum = output.row_sum;
      } else {
        gradients.dbias = {};
      }
      for (const Execution& execution : Executions(kernel)) {
        ExpectCounted(
            problem, Pass::kBackward, execution,
            [&](const Execution& e) { return Backward(problem, input, gradients, e); },
            [&](const auto& layout, const io_model::Tiles& tiles) {
              return io_model::BackwardTraffic(layout, algorithm, tiles, input, gradients);
            });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, IoModelTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
