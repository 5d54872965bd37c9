// What the C interface refuses, with its whole message, and that it writes and throws nothing then.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/c_guard.h"
#include "flashwok/c_api.h"
#include "tests/plain_structs.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

constexpr int kOk = FLASHWOK_STATUS_OK;
constexpr int kInvalid = FLASHWOK_STATUS_INVALID_ARGUMENT;
constexpr int kUnsupported = FLASHWOK_STATUS_UNSUPPORTED;

std::string SizeMessage(const char* name, std::size_t got, std::size_t least, const char* type) {
  return std::string(name) + ": struct_size is " + std::to_string(got) + ", must be from " +
         std::to_string(least) + " to 65536, as flashwok_" + type + "_init sets it";
}

// Every argument of every call, good until a test spoils one.
class CApiRefusals : public ::testing::Test {
 protected:
  CApiRefusals() {
    (void)flashwok_plan_result_init(&result_, sizeof(result_));
    (void)flashwok_kernel_info_init(&info_, sizeof(info_));
    plan_ = [this] {
      return flashwok_plan(&problem_, FLASHWOK_PASS_FORWARD, &execution_, &result_, message_,
                           sizeof(message_));
    };
    forward_ = [this] {
      return flashwok_forward(&problem_, &output_, &execution_, message_, sizeof(message_));
    };
    backward_ = [this] {
      return flashwok_backward(&problem_, &input_, &gradients_, &execution_, message_,
                               sizeof(message_));
    };
  }

  void ExpectRefusal(const std::function<flashwok_status()>& call, const std::string& want,
                     int code = kInvalid) {
    std::strcpy(message_, "before");
    EXPECT_EQ(call(), code) << want;
    EXPECT_EQ(std::string(message_), want);
    data_.ResetOutputs();  // so that GuardError would see an input that was written
    EXPECT_EQ(data_.GuardError(), "");
  }

  ProblemData data_{{.name = "refusals"}};
  flashwok_problem problem_ = Plain(data_.problem);
  flashwok_forward_output output_ = Plain(data_.output);
  flashwok_backward_input input_ = Plain(data_.backward);
  flashwok_gradients gradients_ = Plain(data_.gradients);
  flashwok_execution execution_ = Plain(Execution{});
  flashwok_plan_result result_;
  flashwok_kernel_info info_;
  char message_[512] = "";
  std::function<flashwok_status()> plan_, forward_, backward_;
};

TEST_F(CApiRefusals, NullPointers) {
  char* text = message_;
  const std::size_t size = sizeof(message_);
  const auto missing = [](const char* name) {
    return std::string(name) + ": is null, must be given";
  };
  const flashwok_pass pass = FLASHWOK_PASS_FORWARD;
  ExpectRefusal([&] { return flashwok_plan(nullptr, pass, nullptr, &result_, text, size); },
                missing("problem"));
  ExpectRefusal([&] { return flashwok_plan(&problem_, pass, nullptr, nullptr, text, size); },
                missing("result"));
  std::int64_t bytes[2] = {5, 5};
  const auto moved = [&](std::int64_t* read, std::int64_t* written) {
    return [=, this] {
      return flashwok_forward_bytes(&problem_, &output_, nullptr, read, written, text, size);
    };
  };
  ExpectRefusal(moved(nullptr, bytes), missing("read"));
  ExpectRefusal(moved(bytes, nullptr), missing("written"));
  EXPECT_EQ(bytes[0], 5);
  ExpectRefusal([&] { return flashwok_forward(nullptr, &output_, nullptr, text, size); },
                missing("problem"));
  ExpectRefusal([&] { return flashwok_forward(&problem_, nullptr, nullptr, text, size); },
                missing("output"));
  ExpectRefusal(
      [&] { return flashwok_backward(nullptr, &input_, &gradients_, nullptr, text, size); },
      missing("problem"));
  ExpectRefusal(
      [&] { return flashwok_backward(&problem_, nullptr, &gradients_, nullptr, text, size); },
      missing("input"));
  ExpectRefusal([&] { return flashwok_backward(&problem_, &input_, nullptr, nullptr, text, size); },
                missing("gradients"));
  const flashwok_tensor* dout = &input_.dout;
  const auto both = [&](const flashwok_problem* p, const flashwok_forward_output* o,
                        const flashwok_tensor* d, const flashwok_gradients* g) {
    return [=] { return flashwok_forward_backward(p, o, d, g, nullptr, text, size); };
  };
  ExpectRefusal(both(nullptr, &output_, dout, &gradients_), missing("problem"));
  ExpectRefusal(both(&problem_, nullptr, dout, &gradients_), missing("output"));
  ExpectRefusal(both(&problem_, &output_, nullptr, &gradients_), missing("dout"));
  ExpectRefusal(both(&problem_, &output_, dout, nullptr), missing("gradients"));
  const char* names[] = {"o_a", "lse_a", "o_b", "lse_b", "o", "lse"};
  for (int n = 0; n < 6; ++n) {
    const flashwok_tensor* t[] = {&output_.o,   &output_.lse, &output_.o,
                                  &output_.lse, &output_.o,   &output_.lse};
    t[n] = nullptr;
    ExpectRefusal(
        [&] { return flashwok_merge_states(t[0], t[1], t[2], t[3], t[4], t[5], text, size); },
        missing(names[n]));
  }
  const char* quantized[] = {"x", "values", "descale"};
  for (int n = 0; n < 3; ++n) {
    const flashwok_tensor* t[] = {&output_.o, &output_.o, &output_.lse};
    t[n] = nullptr;
    ExpectRefusal([&] { return flashwok_quantize_float8(t[0], t[1], t[2], text, size); },
                  missing(quantized[n]));
  }
  ExpectRefusal([&] { return flashwok_get_kernel(0, nullptr, text, size); }, missing("info"));
  ExpectRefusal([&] { return flashwok_get_cpu_target(0, nullptr, 64, text, size); },
                missing("name"));
}

TEST_F(CApiRefusals, Indices) {
  const std::size_t kernels = flashwok_num_kernels();
  const std::size_t targets = flashwok_num_cpu_targets();
  char name[FLASHWOK_NAME_SIZE];
  ExpectRefusal([&] { return flashwok_get_kernel(kernels, &info_, message_, sizeof(message_)); },
                "index: is " + std::to_string(kernels) + ", must be from 0 to below " +
                    std::to_string(kernels));
  ExpectRefusal(
      [&] {
        return flashwok_get_cpu_target(targets + 1, name, sizeof(name), message_, sizeof(message_));
      },
      "index: is " + std::to_string(targets + 1) + ", must be from 0 to below " +
          std::to_string(targets));
}

TEST_F(CApiRefusals, Enums) {
  for (int value : {-1, 5, 256, 258}) {
    problem_.algorithm = value;
    ExpectRefusal(forward_, "algorithm: is " + std::to_string(value) + ", must be from 0 to 4");
    ExpectRefusal(plan_, "algorithm: is " + std::to_string(value) + ", must be from 0 to 4");
  }
  problem_.algorithm = FLASHWOK_ALGORITHM_AUTO;
  for (int value : {-1, 3, 256}) {
    problem_.causal = value;
    ExpectRefusal(forward_, "causal: is " + std::to_string(value) + ", must be from 0 to 2");
  }
  problem_.causal = FLASHWOK_CAUSAL_NONE;
  for (int value : {-1, 7, 256}) {
    problem_.k.dtype = value;
    ExpectRefusal(forward_, "k: dtype is " + std::to_string(value) + ", must be from 0 to 6");
  }
  problem_.k.dtype = FLASHWOK_DTYPE_FLOAT32;
  for (int value : {-1, 2, 256}) {
    gradients_.dv.device_type = value;
    ExpectRefusal(backward_,
                  "dv: device type is " + std::to_string(value) + ", must be from 0 to 1");
    ExpectRefusal(
        [&] {
          return flashwok_plan(&problem_, value, nullptr, &result_, message_, sizeof(message_));
        },
        "pass: is " + std::to_string(value) + ", must be from 0 to 1");
  }
}

TEST_F(CApiRefusals, SmallStructs) {
  for (std::size_t size : {std::size_t{0}, sizeof(problem_) - 1, std::size_t{65537}}) {
    problem_.struct_size = size;
    ExpectRefusal(forward_, SizeMessage("problem", size, sizeof(problem_), "problem"));
  }
  problem_.struct_size = sizeof(problem_);
  output_.struct_size -= 1;
  ExpectRefusal(forward_,
                SizeMessage("output", sizeof(output_) - 1, sizeof(output_), "forward_output"));
  output_.struct_size = sizeof(output_);
  execution_.struct_size = 8;
  ExpectRefusal(forward_, SizeMessage("execution", 8, sizeof(execution_), "execution"));
  execution_.struct_size = sizeof(execution_);
  input_.struct_size = 0;
  ExpectRefusal(backward_, SizeMessage("input", 0, sizeof(input_), "backward_input"));
  input_.struct_size = sizeof(input_);
  gradients_.struct_size = 0;
  ExpectRefusal(backward_, SizeMessage("gradients", 0, sizeof(gradients_), "gradients"));
  result_.struct_size = 0;
  ExpectRefusal(plan_, SizeMessage("result", 0, sizeof(result_), "plan_result"));
  info_.struct_size = 0;
  ExpectRefusal([&] { return flashwok_get_kernel(0, &info_, message_, sizeof(message_)); },
                SizeMessage("info", 0, sizeof(info_), "kernel_info"));
}

// A caller whose header is newer: its struct has a field at the end that this library lacks.
TEST_F(CApiRefusals, LargerStructs) {
  struct Later {
    flashwok_problem problem;
    std::int64_t field;
  } later;
  std::memset(&later, 0xFF, sizeof(later));
  ASSERT_EQ(flashwok_problem_init(&later.problem, sizeof(later)), kOk);
  EXPECT_EQ(later.field, 0);
  EXPECT_EQ(later.problem.struct_size, sizeof(later));
  EXPECT_EQ(later.problem.window_left, -1);
  later.problem = problem_;
  later.problem.struct_size = sizeof(later);
  const auto call = [&] {
    return flashwok_forward(&later.problem, &output_, nullptr, message_, sizeof(message_));
  };
  EXPECT_EQ(call(), kOk) << message_;
  later.field = 1;
  const std::string known = std::to_string(sizeof(flashwok_problem));
  ExpectRefusal(call,
                "problem: byte " + known + " is set, must be 0 past the " + known +
                    " bytes that flashwok " + flashwok_version() + " knows of this struct",
                kUnsupported);

  struct LaterResult {
    flashwok_plan_result result;
    std::int64_t field;
  } later_result;
  ASSERT_EQ(flashwok_plan_result_init(&later_result.result, sizeof(later_result)), kOk);
  later_result.field = 7;
  EXPECT_EQ(flashwok_plan(&problem_, FLASHWOK_PASS_FORWARD, nullptr, &later_result.result, message_,
                          sizeof(message_)),
            kOk);
  EXPECT_EQ(later_result.result.struct_size, sizeof(later_result));
  EXPECT_EQ(later_result.field, 7);
}

TEST_F(CApiRefusals, Initialisers) {
  flashwok_problem problem;
  std::memset(&problem, 0xFF, sizeof(problem));
  for (std::size_t size : {std::size_t{0}, sizeof(problem) - 1, std::size_t{65537}}) {
    EXPECT_EQ(flashwok_problem_init(&problem, size), kInvalid);
    EXPECT_EQ(problem.struct_size, std::numeric_limits<std::size_t>::max());
  }
  ASSERT_EQ(flashwok_problem_init(&problem, sizeof(problem)), kOk);
  flashwok_problem want{};
  want.struct_size = sizeof(want);
  want.window_left = want.window_right = -1;
  EXPECT_EQ(std::memcmp(&problem, &want, sizeof(want)), 0);

  flashwok_execution execution;
  std::memset(&execution, 0xFF, sizeof(execution));
  ASSERT_EQ(flashwok_execution_init(&execution, sizeof(execution)), kOk);
  EXPECT_EQ(execution.workspace_limit, Execution{}.workspace_limit);
  EXPECT_EQ(execution.num_threads, 0);
  EXPECT_EQ(execution.observer, nullptr);
  EXPECT_EQ(execution.stream, nullptr);

  flashwok_gradients gradients;
  std::memset(&gradients, 0xFF, sizeof(gradients));
  ASSERT_EQ(flashwok_gradients_init(&gradients, sizeof(gradients)), kOk);
  EXPECT_EQ(gradients.dbias.rank, 0);
}

TEST_F(CApiRefusals, MessagesAreCut) {
  problem_.q.rank = 0;
  const std::string whole = "q: is absent (rank 0), must be given";
  for (std::size_t size : {std::size_t{1}, std::size_t{9}, whole.size(), whole.size() + 1}) {
    std::memset(message_, '#', sizeof(message_));
    EXPECT_EQ(flashwok_forward(&problem_, &output_, nullptr, message_, size), kInvalid);
    EXPECT_EQ(std::string(message_), whole.substr(0, size - 1));
    EXPECT_EQ(message_[size], '#');
  }
  message_[0] = '#';
  EXPECT_EQ(flashwok_forward(&problem_, &output_, nullptr, message_, 0), kInvalid);
  EXPECT_EQ(message_[0], '#');
  EXPECT_EQ(flashwok_forward(&problem_, &output_, nullptr, nullptr, 100), kInvalid);
  problem_ = Plain(data_.problem);
  EXPECT_EQ(forward_(), kOk);
  EXPECT_STREQ(message_, "");
}

TEST_F(CApiRefusals, RejectionsNeedMemory) {
  result_.rejections_capacity = 2;
  ExpectRefusal(plan_,
                "result: rejections is null, must point to rejections_capacity, 2, elements");
}

TEST_F(CApiRefusals, ContiguousTensors) {
  const std::int64_t shape[] = {2, 65, 2, 32, 1};
  const flashwok_tensor same = flashwok_contiguous(data_.problem.q.data, 0, 4, shape);
  const flashwok_tensor want =
      Plain(Tensor::Contiguous(data_.problem.q.data, DType::kFloat32, {2, 65, 2, 32}));
  EXPECT_EQ(std::memcmp(&same, &want, sizeof(want)), 0);
  problem_.q = flashwok_contiguous(nullptr, 0, 5, shape);
  ExpectRefusal(forward_, "q: rank is 5, must be from 1 to 4");
  problem_.q = flashwok_contiguous(nullptr, 0, 4, nullptr);
  ExpectRefusal(forward_, "q: rank is -1, must be from 1 to 4");
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t large[] = {2, kMax, kMax, 2};
  problem_.q = flashwok_contiguous(nullptr, 0, 4, large);
  ExpectRefusal(forward_, "q: strides[0] is 9223372036854775807, must be from 0 to " +
                              std::to_string(kMax / 4));
  const std::int64_t negative[] = {2, -65, 2, 32};
  problem_.q = flashwok_contiguous(nullptr, 0, 4, negative);
  ExpectRefusal(forward_, "q: shape[1] is -65, must be from 0");
}

TEST_F(CApiRefusals, NoExceptionComesOut) {
  const auto guarded = [&](const std::function<void()>& body) {
    return [this, body] {
      return Guard({message_, sizeof(message_)}, [&](Check&) {
        body();
        return Status();
      });
    };
  };
  EXPECT_EQ(guarded([] {})(), kOk);
  ExpectRefusal(guarded([] { throw std::bad_alloc(); }), "memory ran out",
                FLASHWOK_STATUS_OUT_OF_MEMORY);
  ExpectRefusal(guarded([] { throw std::runtime_error("a reason"); }), "a reason",
                FLASHWOK_STATUS_INTERNAL);
  ExpectRefusal(guarded([] { throw 1; }), "an unknown exception", FLASHWOK_STATUS_INTERNAL);
}

}  // namespace
}  // namespace flashwok::test
