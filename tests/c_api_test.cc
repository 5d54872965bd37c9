// The C interface computes what the C++ one does, bit for bit: results, plans, events, lists.
#include "flashwok/c_api.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/c_api_c11.h"
#include "tests/cases.h"
#include "tests/plain_structs.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kStandard, Algorithm::kV1,
                                     Algorithm::kV2, Algorithm::kV3};

// The bytes of the tensors' elements.
std::vector<char> Bytes(std::initializer_list<Tensor> tensors) {
  std::vector<char> bytes;
  for (const Tensor& tensor : tensors) {
    const std::int64_t item = ItemSize(tensor.dtype);
    ForEachElement(tensor, [&](std::int64_t offset) {
      const char* element = static_cast<const char*>(tensor.data) + offset * item;
      bytes.insert(bytes.end(), element, element + item);
    });
  }
  return bytes;
}

class CApiCases : public ::testing::TestWithParam<Case> {
 protected:
  void ExpectSame(const Status& want, flashwok_status code) {
    EXPECT_EQ(code, static_cast<int>(want.code()));
    EXPECT_EQ(std::string(message_), want.message());
  }

  char message_[2048] = "";
};

TEST_P(CApiCases, Forward) {
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  for (Algorithm algorithm : kAlgorithms) {
    SCOPED_TRACE(Name(algorithm));
    data.problem.algorithm = algorithm;
    ForwardOutput output = data.output;
    if (algorithm == Algorithm::kV1) {
      output.row_max = data.row_max;
      output.row_sum = data.row_sum;
    }
    data.ResetOutputs();
    const Status status = Forward(data.problem, output);
    const auto want = Bytes({output.o, output.lse, output.row_max, output.row_sum});
    data.ResetOutputs();
    const flashwok_problem problem = Plain(data.problem);
    const flashwok_forward_output plain = Plain(output);
    ExpectSame(status, flashwok_forward(&problem, &plain, nullptr, message_, sizeof(message_)));
    EXPECT_EQ(Bytes({output.o, output.lse, output.row_max, output.row_sum}), want);
  }
}

TEST_P(CApiCases, Backward) {
  if (!GetParam().backward) GTEST_SKIP();
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  const Gradients& out = data.gradients;
  for (Algorithm algorithm : kAlgorithms) {
    SCOPED_TRACE(Name(algorithm));
    data.problem.algorithm = algorithm;
    data.ResetOutputs();
    ASSERT_TRUE(Forward(data.problem, data.output).ok());
    const Status status = Backward(data.problem, data.backward, out);
    const auto want = Bytes({out.dq, out.dk, out.dv, out.dbias});
    data.ResetOutputs();
    const flashwok_problem problem = Plain(data.problem);
    const flashwok_forward_output output = Plain(data.output);
    const flashwok_backward_input input = Plain(data.backward);
    const flashwok_gradients gradients = Plain(out);
    ASSERT_EQ(flashwok_forward(&problem, &output, nullptr, message_, sizeof(message_)), 0);
    ExpectSame(status, flashwok_backward(&problem, &input, &gradients, nullptr, message_,
                                         sizeof(message_)));
    EXPECT_EQ(Bytes({out.dq, out.dk, out.dv, out.dbias}), want);
  }
}

TEST_P(CApiCases, ForwardBackward) {
  if (!GetParam().backward) GTEST_SKIP();
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  const Gradients& out = data.gradients;
  const Tensor& dout = data.backward.dout;
  const Status status = ForwardBackward(data.problem, data.output, dout, out);
  const auto want = Bytes({data.output.o, data.output.lse, out.dq, out.dk, out.dv, out.dbias});
  data.ResetOutputs();
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  const flashwok_tensor plain_dout = Plain(dout);
  const flashwok_gradients gradients = Plain(out);
  ExpectSame(status, flashwok_forward_backward(&problem, &output, &plain_dout, &gradients, nullptr,
                                               message_, sizeof(message_)));
  EXPECT_EQ(Bytes({data.output.o, data.output.lse, out.dq, out.dk, out.dv, out.dbias}), want);
}

TEST_P(CApiCases, Plan) {
  ProblemData data(GetParam());
  for (Algorithm algorithm : kAlgorithms) {
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      SCOPED_TRACE(std::string(Name(algorithm)) + " " + Name(pass));
      data.problem.algorithm = algorithm;
      const PlanResult want = Plan(data.problem, pass);
      const flashwok_problem problem = Plain(data.problem);
      flashwok_rejection rejections[3];
      flashwok_plan_result result;
      ASSERT_EQ(flashwok_plan_result_init(&result, sizeof(result)), 0);
      result.rejections = rejections;
      result.rejections_capacity = std::size(rejections);
      ExpectSame(want.status, flashwok_plan(&problem, static_cast<int>(pass), nullptr, &result,
                                            message_, sizeof(message_)));
      EXPECT_EQ(result.kernel, want.kernel);
      EXPECT_EQ(result.algorithm, static_cast<int>(want.algorithm));
      EXPECT_EQ(result.tile_q, want.tile_q);
      EXPECT_EQ(result.tile_kv, want.tile_kv);
      EXPECT_EQ(result.num_splits, want.num_splits);
      EXPECT_EQ(result.num_threads, want.num_threads);
      EXPECT_EQ(result.workspace_bytes, want.workspace_bytes);
      ASSERT_EQ(result.num_rejections, want.rejections.size());
      for (std::size_t n = 0; n < std::min(std::size(rejections), want.rejections.size()); ++n) {
        EXPECT_EQ(rejections[n].kernel, want.rejections[n].kernel);
        EXPECT_EQ(rejections[n].reason, want.rejections[n].reason);
      }
    }
  }
}

TEST_P(CApiCases, ForwardBytes) {
  ProblemData data(GetParam());
  const flashwok_forward_output output = Plain(data.output);
  for (Algorithm algorithm : kAlgorithms) {
    SCOPED_TRACE(Name(algorithm));
    data.problem.algorithm = algorithm;
    std::int64_t want[2] = {-1, -1};
    std::int64_t bytes[2] = {-1, -1};
    const Status status = ForwardBytes(data.problem, data.output, {}, &want[0], &want[1]);
    const flashwok_problem problem = Plain(data.problem);
    ExpectSame(status, flashwok_forward_bytes(&problem, &output, nullptr, &bytes[0], &bytes[1],
                                              message_, sizeof(message_)));
    EXPECT_EQ(bytes[0], want[0]);
    EXPECT_EQ(bytes[1], want[1]);
  }
}

TEST(CApi, ForwardBytesNeedsTheLengths) {
  ProblemData data({.name = "lengths", .lengths_q = {3, 5}, .lengths_k = {3, 5}});
  data.problem.cu_seqlens_q.data = nullptr;
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  std::int64_t bytes[2] = {7, 7};
  char message[256] = "";
  EXPECT_EQ(flashwok_forward_bytes(&problem, &output, nullptr, &bytes[0], &bytes[1], message,
                                   sizeof(message)),
            FLASHWOK_STATUS_UNSUPPORTED);
  EXPECT_STREQ(message, "cu_seqlens_q: must hold its lengths on the CPU");
  EXPECT_EQ(bytes[0], 7);
}

INSTANTIATE_TEST_SUITE_P(Cases, CApiCases, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

TEST(CApi, MergeStates) {
  ProblemData a({.name = "a"});
  ProblemData b({.name = "b"});
  ProblemData joined({.name = "joined"});
  ASSERT_TRUE(Forward(a.problem, a.output).ok());
  ASSERT_TRUE(Forward(b.problem, b.output).ok());
  const ForwardOutput& out = joined.output;
  ASSERT_TRUE(MergeStates(a.output.o, a.output.lse, b.output.o, b.output.lse, out.o, out.lse).ok());
  const auto want = Bytes({out.o, out.lse});
  joined.ResetOutputs();
  const flashwok_forward_output first = Plain(a.output);
  const flashwok_forward_output second = Plain(b.output);
  const flashwok_forward_output result = Plain(out);
  EXPECT_EQ(flashwok_merge_states(&first.o, &first.lse, &second.o, &second.lse, &result.o,
                                  &result.lse, nullptr, 0),
            FLASHWOK_STATUS_OK);
  EXPECT_EQ(Bytes({out.o, out.lse}), want);
  joined.ResetOutputs();
  flashwok_execution execution;
  ASSERT_EQ(flashwok_execution_init(&execution, sizeof(execution)), FLASHWOK_STATUS_OK);
  const auto merge_on = [&](char* message, std::size_t size) {
    return flashwok_merge_states_on(&first.o, &first.lse, &second.o, &second.lse, &result.o,
                                    &result.lse, &execution, message, size);
  };
  EXPECT_EQ(merge_on(nullptr, 0), FLASHWOK_STATUS_OK);
  EXPECT_EQ(Bytes({out.o, out.lse}), want);
  execution.stream = &execution;
  char message[64];
  EXPECT_EQ(merge_on(message, sizeof(message)), FLASHWOK_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(message, "stream: is given, must be null on the CPU");
}

TEST(CApi, ExecutionIsObeyed) {
  ProblemData data({.name = "execution"});
  Execution execution;
  execution.num_threads = 1;
  execution.tile_q = 24;
  execution.tile_kv = 32;
  const PlanResult want = Plan(data.problem, Pass::kForward, execution);
  std::vector<char> memory(want.workspace_bytes + 64);
  execution.workspace =
      memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  execution.workspace_bytes = want.workspace_bytes;
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  flashwok_execution plain = Plain(execution);
  flashwok_plan_result result;
  ASSERT_EQ(flashwok_plan_result_init(&result, sizeof(result)), 0);
  ASSERT_EQ(flashwok_plan(&problem, FLASHWOK_PASS_FORWARD, &plain, &result, nullptr, 0), 0);
  EXPECT_EQ(result.tile_q, 24);
  EXPECT_EQ(result.tile_kv, 32);
  EXPECT_EQ(result.num_threads, 1);
  EXPECT_EQ(flashwok_forward(&problem, &output, &plain, nullptr, 0), FLASHWOK_STATUS_OK);
  char message[256];
  plain.workspace_bytes = 1;
  EXPECT_EQ(flashwok_forward(&problem, &output, &plain, message, sizeof(message)),
            FLASHWOK_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(message), "workspace_bytes: 1 is less than the " +
                                      std::to_string(want.workspace_bytes) + " that " +
                                      want.kernel + " needs");
  // The plan is told even where the scratch is refused.
  plain.workspace = nullptr;
  plain.workspace_bytes = 0;
  plain.workspace_limit = 1;
  std::memset(result.kernel, 0, sizeof(result.kernel));
  EXPECT_EQ(flashwok_plan(&problem, FLASHWOK_PASS_FORWARD, &plain, &result, nullptr, 0),
            FLASHWOK_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(result.kernel, want.kernel);
}

TEST(CApi, TheNamedKernelRuns) {
  ProblemData data({.name = "named"});
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  flashwok_execution execution;
  ASSERT_EQ(flashwok_execution_init(&execution, sizeof(execution)), 0);
  EXPECT_EQ(execution.kernel, nullptr);
  flashwok_plan_result result;
  ASSERT_EQ(flashwok_plan_result_init(&result, sizeof(result)), 0);
  execution.kernel = "cpu_forward_v1";
  EXPECT_EQ(flashwok_plan(&problem, FLASHWOK_PASS_FORWARD, &execution, &result, nullptr, 0), 0);
  EXPECT_STREQ(result.kernel, "cpu_forward_v1");
  EXPECT_EQ(result.algorithm, FLASHWOK_ALGORITHM_V1);
  EXPECT_EQ(flashwok_forward(&problem, &output, &execution, nullptr, 0), FLASHWOK_STATUS_OK);
  char message[256];
  execution.kernel = "no_such";
  EXPECT_EQ(flashwok_forward(&problem, &output, &execution, message, sizeof(message)),
            FLASHWOK_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(message, "kernel: 'no_such' is not in the registry");
}

class Recorder : public Observer {
 public:
  void OnEvent(const Event& event) override { events.push_back(event); }
  std::vector<Event> events;
};

void RecordPlain(const flashwok_event* event, void* data) {
  static_cast<std::vector<flashwok_event>*>(data)->push_back(*event);
}

TEST(CApi, ObserverSeesTheSameEvents) {
  ProblemData data(
      {.name = "events", .seqlen_q = 300, .seqlen_k = 300, .causal = Causal::kBottomRight});
  Recorder recorder;
  Execution execution;
  execution.num_threads = 1;
  execution.observer = &recorder;
  ASSERT_TRUE(Forward(data.problem, data.output, execution).ok());
  const flashwok_problem problem = Plain(data.problem);
  const flashwok_forward_output output = Plain(data.output);
  flashwok_execution plain = Plain(execution);
  std::vector<flashwok_event> events;
  plain.observer = RecordPlain;
  plain.observer_data = &events;
  ASSERT_EQ(flashwok_forward(&problem, &output, &plain, nullptr, 0), FLASHWOK_STATUS_OK);
  ASSERT_EQ(events.size(), recorder.events.size());
  ASSERT_FALSE(events.empty());
  for (std::size_t n = 0; n < events.size(); ++n) {
    const Event& want = recorder.events[n];
    EXPECT_GE(events[n].duration, 0);
    EXPECT_EQ(events[n].bytes, want.bytes);
    EXPECT_EQ(events[n].flops, want.flops);
    EXPECT_EQ(events[n].kind, static_cast<int>(want.kind));
    EXPECT_EQ(events[n].role, static_cast<int>(want.role));
    EXPECT_EQ(events[n].stage, want.stage);
    EXPECT_EQ(events[n].masked, want.masked);
    EXPECT_EQ(events[n].track, want.track);
    EXPECT_EQ(events[n].head, want.head);
    EXPECT_EQ(events[n].q_tile, want.q_tile);
    EXPECT_EQ(events[n].k_tile, want.k_tile);
  }
}

TEST(CApi, Lists) {
  const std::vector<KernelInfo> kernels = Kernels();
  ASSERT_EQ(flashwok_num_kernels(), kernels.size());
  for (std::size_t n = 0; n < kernels.size(); ++n) {
    flashwok_kernel_info info;
    ASSERT_EQ(flashwok_kernel_info_init(&info, sizeof(info)), 0);
    ASSERT_EQ(flashwok_get_kernel(n, &info, nullptr, 0), FLASHWOK_STATUS_OK);
    EXPECT_EQ(info.name, kernels[n].name);
    EXPECT_EQ(info.dtypes, kernels[n].dtypes);
    EXPECT_EQ(info.requirement, kernels[n].requirement);
    EXPECT_EQ(info.pass, static_cast<int>(kernels[n].pass));
    EXPECT_EQ(info.algorithm, static_cast<int>(kernels[n].algorithm));
    EXPECT_EQ(info.device_type, static_cast<int>(kernels[n].device.type));
    EXPECT_EQ(info.available != 0, kernels[n].available);
  }
  const std::vector<std::string> targets = CpuTargets();
  ASSERT_EQ(flashwok_num_cpu_targets(), targets.size());
  for (std::size_t n = 0; n < targets.size(); ++n) {
    char name[FLASHWOK_NAME_SIZE];
    ASSERT_EQ(flashwok_get_cpu_target(n, name, sizeof(name), nullptr, 0), FLASHWOK_STATUS_OK);
    EXPECT_EQ(name, targets[n]);
  }
  EXPECT_STREQ(flashwok_version(), Version());
}

template <typename Enum>
void ExpectNames(const char* (*name)(std::int32_t), Enum last) {
  for (int value = 0; value <= static_cast<int>(last); ++value) {
    EXPECT_STREQ(name(value), Name(static_cast<Enum>(value)));
  }
  for (int value : {-1, static_cast<int>(last) + 1, 256, std::numeric_limits<int>::min()}) {
    EXPECT_STREQ(name(value), "unknown");
  }
}

TEST(CApi, Names) {
  ExpectNames(flashwok_dtype_name, DType::kInt32);
  ExpectNames(flashwok_algorithm_name, Algorithm::kV3);
  ExpectNames(flashwok_causal_name, Causal::kTopLeft);
  ExpectNames(flashwok_pass_name, Pass::kBackward);
  ExpectNames(flashwok_event_kind_name, EventKind::kSchedule);
  ExpectNames(flashwok_role_name, Role::kDLse);
  for (int value = 0; value <= static_cast<int>(DType::kInt32); ++value) {
    EXPECT_EQ(flashwok_item_size(value), ItemSize(static_cast<DType>(value)));
  }
  EXPECT_EQ(flashwok_item_size(-1), 0);
  EXPECT_EQ(flashwok_item_size(7), 0);
}

TEST(CApi, C11SeesTheSameLayout) {
  for (int n = 0; n < kC11Structs; ++n) {
    EXPECT_EQ(kSeenLayout[n][0], C11Layout()[n][0]) << n;
    EXPECT_EQ(kSeenLayout[n][1], C11Layout()[n][1]) << n;
  }
  EXPECT_EQ(C11CallsThatAccept(), 0);
}

}  // namespace
}  // namespace flashwok::test
