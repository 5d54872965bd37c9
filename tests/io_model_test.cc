// The bytes and FLOPs that a run shows its Observer equal the formulas, for every case and kernel.
#include "common/io_model.h"

#include <gtest/gtest.h>

#include <mutex>

#include "cpu/forward_v3.h"
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

class IoModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(IoModelTest, CountedEqualsFormula) {
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.pass != Pass::kForward) continue;
    SCOPED_TRACE(kernel.name);
    data.problem.algorithm = kernel.algorithm;
    for (int splits : {1, 3}) {
      const bool flash = kernel.algorithm == Algorithm::kV2 || kernel.algorithm == Algorithm::kV3;
      data.problem.num_splits = flash ? splits : 0;
      Execution execution;
      execution.num_threads = 2;
      execution.tile_q = 36;
      execution.tile_kv = 32;
      const PlanResult plan = Plan(data.problem, Pass::kForward, execution);
      if (!plan.status.ok()) continue;
      Counter counter;
      execution.observer = &counter;
      ASSERT_TRUE(Forward(data.problem, data.output, execution).ok());
      const flashwok::Layout layout(data.problem);
      io_model::Tiles tiles{plan.tile_q, plan.tile_kv, 0, 0};
      if (kernel.algorithm == Algorithm::kV3) tiles.block_rows = cpu::kConsumerRows;
      if (plan.num_splits > 1) {
        tiles.chunk = CeilDiv(CeilDiv(layout.max_seqlen_k, splits), tiles.tile_kv) * tiles.tile_kv;
      }
      const io_model::Traffic want =
          io_model::ForwardTraffic(layout, kernel.algorithm, tiles, true, data.output.o.dtype);
      EXPECT_EQ(counter.traffic.load, want.load);
      EXPECT_EQ(counter.traffic.store, want.store);
      EXPECT_EQ(counter.traffic.flops, want.flops);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, IoModelTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
