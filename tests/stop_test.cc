// Execution::stop: it ends a call of any CPU kernel, at any moment, and one that says no is not
// felt.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "flashwok/attention.h"
#include "tests/plain_structs.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

// Says no until it was asked `patience` times.
struct Stop {
  int patience = 0;
  int asked = 0;
  bool elsewhere = false;  // asked on another thread than the caller's
  std::thread::id caller = std::this_thread::get_id();
};

std::int32_t Ask(void* data) {
  Stop& stop = *static_cast<Stop*>(data);
  if (std::this_thread::get_id() != stop.caller) stop.elsewhere = true;
  return ++stop.asked > stop.patience ? 1 : 0;
}

Case LongEnough(const KernelInfo& info) {
  Case c{
      .name = "stop", .batch = 2, .seqlen_q = 300, .seqlen_k = 300, .causal = Causal::kBottomRight};
  if (info.dtypes == "bfloat16") c.dtype = DType::kBFloat16;
  return c;
}

Status RunKernel(const KernelInfo& info, ProblemData& data, const Execution& execution) {
  if (info.pass == Pass::kForward) return Forward(data.problem, data.output, execution);
  return Backward(data.problem, data.backward, data.gradients, execution);
}

std::string Written(const KernelInfo& info, const ProblemData& data) {
  const Tensor& t = info.pass == Pass::kForward ? data.output.o : data.gradients.dk;
  return {static_cast<const char*>(t.data),
          static_cast<std::size_t>(t.num_elements() * ItemSize(t.dtype))};
}

class StopTest : public ::testing::TestWithParam<KernelInfo> {};

TEST_P(StopTest, EndsTheCall) {
  const KernelInfo& info = GetParam();
  ProblemData data(LongEnough(info));
  ASSERT_TRUE(Forward(data.problem, data.output).ok());
  Execution execution;
  execution.kernel = info.name;
  for (int threads : {1, 3}) {
    execution.num_threads = threads;
    execution.stop = nullptr;
    ASSERT_TRUE(RunKernel(info, data, execution).ok());
    const std::string want = Written(info, data);
    execution.stop = Ask;
    Stop never{.patience = 1 << 30};
    execution.stop_data = &never;
    ASSERT_TRUE(RunKernel(info, data, execution).ok());
    EXPECT_EQ(Written(info, data), want);
    EXPECT_FALSE(never.elsewhere);
    ASSERT_GT(never.asked, 0);
    for (int patience : {0, 1}) {
      Stop stop{.patience = patience};
      execution.stop_data = &stop;
      const Status status = RunKernel(info, data, execution);
      if (threads > 1 && stop.asked <= patience) continue;  // the others had taken every tile
      EXPECT_EQ(status.code(), StatusCode::kCancelled);
      EXPECT_EQ(status.message(), "stopped by the caller");
      EXPECT_EQ(stop.asked, patience + 1);  // not again once it has said yes
    }
    // The next call knows nothing of it.
    execution.stop = nullptr;
    ASSERT_TRUE(RunKernel(info, data, execution).ok());
    EXPECT_EQ(Written(info, data), want);
  }
}

std::vector<KernelInfo> CpuKernels() {
  std::vector<KernelInfo> kernels;
  for (KernelInfo& info : Kernels()) {
    if (info.available && info.device.type == DeviceType::kCpu) kernels.push_back(std::move(info));
  }
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(Kernels, StopTest, ::testing::ValuesIn(CpuKernels()),
                         [](const auto& row) { return row.param.name; });

TEST(Stop, ThroughC) {
  ProblemData data({.name = "stop"});
  Execution execution;
  Stop now;
  execution.stop = Ask;
  execution.stop_data = &now;
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  const flashwok_execution plain = Plain(execution);
  char message[64];
  EXPECT_EQ(flashwok_forward(&problem, &output, &plain, message, sizeof(message)),
            FLASHWOK_STATUS_CANCELLED);
  EXPECT_STREQ(message, "stopped by the caller");
  EXPECT_EQ(now.asked, 1);
}

}  // namespace
}  // namespace flashwok::test
