// The C interface: converts, calls the C++ functions, and lets no exception out.
#include "flashwok/c_api.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "api/c_convert.h"
#include "api/c_guard.h"

namespace flashwok {
namespace {

// The C constants are the C++ enumerators.
template <typename Enum>
constexpr bool Same(std::initializer_list<std::pair<Enum, int>> pairs) {
  return std::all_of(pairs.begin(), pairs.end(),
                     [](const auto& pair) { return static_cast<int>(pair.first) == pair.second; });
}
static_assert(Same<StatusCode>({{StatusCode::kOk, FLASHWOK_STATUS_OK},
                                {StatusCode::kInvalidArgument, FLASHWOK_STATUS_INVALID_ARGUMENT},
                                {StatusCode::kUnsupported, FLASHWOK_STATUS_UNSUPPORTED},
                                {StatusCode::kOutOfMemory, FLASHWOK_STATUS_OUT_OF_MEMORY},
                                {StatusCode::kInternal, FLASHWOK_STATUS_INTERNAL},
                                {StatusCode::kCancelled, FLASHWOK_STATUS_CANCELLED}}));
static_assert(Same<DType>({{DType::kFloat32, FLASHWOK_DTYPE_FLOAT32},
                           {DType::kFloat16, FLASHWOK_DTYPE_FLOAT16},
                           {DType::kBFloat16, FLASHWOK_DTYPE_BFLOAT16},
                           {DType::kFloat8E4M3, FLASHWOK_DTYPE_FLOAT8_E4M3},
                           {DType::kFloat8E5M2, FLASHWOK_DTYPE_FLOAT8_E5M2},
                           {DType::kBool, FLASHWOK_DTYPE_BOOL},
                           {DType::kInt32, FLASHWOK_DTYPE_INT32}}));
static_assert(Same<DeviceType>({{DeviceType::kCpu, FLASHWOK_DEVICE_CPU},
                                {DeviceType::kCuda, FLASHWOK_DEVICE_CUDA}}));
static_assert(Same<Algorithm>({{Algorithm::kAuto, FLASHWOK_ALGORITHM_AUTO},
                               {Algorithm::kStandard, FLASHWOK_ALGORITHM_STANDARD},
                               {Algorithm::kV1, FLASHWOK_ALGORITHM_V1},
                               {Algorithm::kV2, FLASHWOK_ALGORITHM_V2},
                               {Algorithm::kV3, FLASHWOK_ALGORITHM_V3}}));
static_assert(Same<Causal>({{Causal::kNone, FLASHWOK_CAUSAL_NONE},
                            {Causal::kBottomRight, FLASHWOK_CAUSAL_BOTTOM_RIGHT},
                            {Causal::kTopLeft, FLASHWOK_CAUSAL_TOP_LEFT}}));
static_assert(Same<Pass>({{Pass::kForward, FLASHWOK_PASS_FORWARD},
                          {Pass::kBackward, FLASHWOK_PASS_BACKWARD}}));
static_assert(Same<EventKind>({{EventKind::kLoad, FLASHWOK_EVENT_LOAD},
                               {EventKind::kStore, FLASHWOK_EVENT_STORE},
                               {EventKind::kProduct, FLASHWOK_EVENT_PRODUCT},
                               {EventKind::kSoftmax, FLASHWOK_EVENT_SOFTMAX},
                               {EventKind::kRescale, FLASHWOK_EVENT_RESCALE},
                               {EventKind::kFinalize, FLASHWOK_EVENT_FINALIZE},
                               {EventKind::kSkip, FLASHWOK_EVENT_SKIP},
                               {EventKind::kIssue, FLASHWOK_EVENT_ISSUE},
                               {EventKind::kWait, FLASHWOK_EVENT_WAIT},
                               {EventKind::kTurn, FLASHWOK_EVENT_TURN},
                               {EventKind::kPack, FLASHWOK_EVENT_PACK},
                               {EventKind::kSchedule, FLASHWOK_EVENT_SCHEDULE}}));
static_assert(Same<Role>({{Role::kQ, FLASHWOK_ROLE_Q},
                          {Role::kK, FLASHWOK_ROLE_K},
                          {Role::kV, FLASHWOK_ROLE_V},
                          {Role::kO, FLASHWOK_ROLE_O},
                          {Role::kS, FLASHWOK_ROLE_S},
                          {Role::kP, FLASHWOK_ROLE_P},
                          {Role::kLse, FLASHWOK_ROLE_LSE},
                          {Role::kRowMax, FLASHWOK_ROLE_ROW_MAX},
                          {Role::kRowSum, FLASHWOK_ROLE_ROW_SUM},
                          {Role::kDO, FLASHWOK_ROLE_DO},
                          {Role::kDQ, FLASHWOK_ROLE_DQ},
                          {Role::kDK, FLASHWOK_ROLE_DK},
                          {Role::kDV, FLASHWOK_ROLE_DV},
                          {Role::kDP, FLASHWOK_ROLE_DP},
                          {Role::kDS, FLASHWOK_ROLE_DS},
                          {Role::kD, FLASHWOK_ROLE_D},
                          {Role::kBias, FLASHWOK_ROLE_BIAS},
                          {Role::kMask, FLASHWOK_ROLE_MASK},
                          {Role::kDBias, FLASHWOK_ROLE_DBIAS},
                          {Role::kPartial, FLASHWOK_ROLE_PARTIAL},
                          {Role::kDLse, FLASHWOK_ROLE_DLSE}}));
static_assert(FLASHWOK_MAX_RANK == Tensor::kMaxRank);

template <typename Struct>
flashwok_status Init(Struct* to, std::size_t struct_size) {
  return InitFromC(to, struct_size) ? FLASHWOK_STATUS_OK : FLASHWOK_STATUS_INVALID_ARGUMENT;
}

template <typename List>
std::size_t Count(List (*list)()) noexcept {
  try {
    return list().size();
  } catch (...) {
    return 0;
  }
}

bool CheckIndex(Check& check, std::size_t index, std::size_t count) {
  return index < count || check.Invalid("index: is ", index, ", must be from 0 to below ", count);
}

template <typename Enum>
const char* NameFromC(std::int32_t value, Enum last) {
  if (value < 0 || value > static_cast<int>(last)) return "unknown";
  return Name(static_cast<Enum>(value));
}

}  // namespace
}  // namespace flashwok

using namespace flashwok;

flashwok_tensor flashwok_contiguous(void* data, flashwok_dtype dtype, int32_t rank,
                                    const int64_t* shape) {
  flashwok_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  if (rank < 1 || rank > FLASHWOK_MAX_RANK) return tensor;
  if (shape == nullptr) {
    tensor.rank = -1;
    return tensor;
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    // A stride too large for 64 bits stays at the largest, which every call refuses.
    const std::int64_t extent = std::max<std::int64_t>(shape[axis], 0);
    stride = extent != 0 && stride > kMax / extent ? kMax : stride * extent;
  }
  return tensor;
}

int32_t flashwok_item_size(flashwok_dtype dtype) {
  if (dtype < 0 || dtype > FLASHWOK_DTYPE_INT32) return 0;
  return ItemSize(static_cast<DType>(dtype));
}

flashwok_status flashwok_problem_init(flashwok_problem* problem, size_t struct_size) {
  return Init(problem, struct_size);
}
flashwok_status flashwok_forward_output_init(flashwok_forward_output* output, size_t struct_size) {
  return Init(output, struct_size);
}
flashwok_status flashwok_backward_input_init(flashwok_backward_input* input, size_t struct_size) {
  return Init(input, struct_size);
}
flashwok_status flashwok_gradients_init(flashwok_gradients* gradients, size_t struct_size) {
  return Init(gradients, struct_size);
}
flashwok_status flashwok_execution_init(flashwok_execution* execution, size_t struct_size) {
  return Init(execution, struct_size);
}
flashwok_status flashwok_plan_result_init(flashwok_plan_result* result, size_t struct_size) {
  return Init(result, struct_size);
}
flashwok_status flashwok_kernel_info_init(flashwok_kernel_info* info, size_t struct_size) {
  return Init(info, struct_size);
}

flashwok_status flashwok_plan(const flashwok_problem* problem, flashwok_pass pass,
                              const flashwok_execution* execution, flashwok_plan_result* result,
                              char* message, size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Problem p;
    Pass which = Pass::kForward;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, problem, &p) || !FromC(check, pass, &which) ||
        !FromC(check, execution, &observer, &e) || !CheckResult(check, result)) {
      return {};
    }
    const PlanResult plan = Plan(p, which, e);
    ToC(plan, result);
    return plan.status;
  });
}

flashwok_status flashwok_forward_bytes(const flashwok_problem* problem,
                                       const flashwok_forward_output* output,
                                       const flashwok_execution* execution, int64_t* read,
                                       int64_t* written, char* message, size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Problem p;
    ForwardOutput out;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, problem, &p) || !FromC(check, output, &out) ||
        !FromC(check, execution, &observer, &e)) {
      return {};
    }
    if (read == nullptr) return Status::Invalid("read: is null, must be given");
    if (written == nullptr) return Status::Invalid("written: is null, must be given");
    return ForwardBytes(p, out, e, read, written);
  });
}

flashwok_status flashwok_forward(const flashwok_problem* problem,
                                 const flashwok_forward_output* output,
                                 const flashwok_execution* execution, char* message,
                                 size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Problem p;
    ForwardOutput out;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, problem, &p) || !FromC(check, output, &out) ||
        !FromC(check, execution, &observer, &e)) {
      return {};
    }
    return Forward(p, out, e);
  });
}

flashwok_status flashwok_backward(const flashwok_problem* problem,
                                  const flashwok_backward_input* input,
                                  const flashwok_gradients* gradients,
                                  const flashwok_execution* execution, char* message,
                                  size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Problem p;
    BackwardInput in;
    Gradients out;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, problem, &p) || !FromC(check, input, &in) || !FromC(check, gradients, &out) ||
        !FromC(check, execution, &observer, &e)) {
      return {};
    }
    return Backward(p, in, out, e);
  });
}

flashwok_status flashwok_forward_backward(const flashwok_problem* problem,
                                          const flashwok_forward_output* output,
                                          const flashwok_tensor* dout,
                                          const flashwok_gradients* gradients,
                                          const flashwok_execution* execution, char* message,
                                          size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Problem p;
    ForwardOutput out;
    Tensor d_out;
    Gradients grads;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, problem, &p) || !FromC(check, output, &out) ||
        !FromC(check, "dout", dout, &d_out) || !FromC(check, gradients, &grads) ||
        !FromC(check, execution, &observer, &e)) {
      return {};
    }
    return ForwardBackward(p, out, d_out, grads, e);
  });
}

flashwok_status flashwok_merge_states(const flashwok_tensor* o_a, const flashwok_tensor* lse_a,
                                      const flashwok_tensor* o_b, const flashwok_tensor* lse_b,
                                      const flashwok_tensor* o, const flashwok_tensor* lse,
                                      char* message, size_t message_size) {
  return flashwok_merge_states_on(o_a, lse_a, o_b, lse_b, o, lse, nullptr, message, message_size);
}

flashwok_status flashwok_merge_states_on(const flashwok_tensor* o_a, const flashwok_tensor* lse_a,
                                         const flashwok_tensor* o_b, const flashwok_tensor* lse_b,
                                         const flashwok_tensor* o, const flashwok_tensor* lse,
                                         const flashwok_execution* execution, char* message,
                                         size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Tensor a, scalars_a, b, scalars_b, out, scalars;
    CallbackObserver observer;
    Execution e;
    if (!FromC(check, "o_a", o_a, &a) || !FromC(check, "lse_a", lse_a, &scalars_a) ||
        !FromC(check, "o_b", o_b, &b) || !FromC(check, "lse_b", lse_b, &scalars_b) ||
        !FromC(check, "o", o, &out) || !FromC(check, "lse", lse, &scalars) ||
        !FromC(check, execution, &observer, &e)) {
      return {};
    }
    return MergeStates(a, scalars_a, b, scalars_b, out, scalars, e);
  });
}

flashwok_status flashwok_quantize_float8(const flashwok_tensor* x, const flashwok_tensor* values,
                                         const flashwok_tensor* descale, char* message,
                                         size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    Tensor from, to, scale;
    if (!FromC(check, "x", x, &from) || !FromC(check, "values", values, &to) ||
        !FromC(check, "descale", descale, &scale)) {
      return {};
    }
    return QuantizeFloat8(from, to, scale);
  });
}

size_t flashwok_num_kernels(void) { return Count(Kernels); }

flashwok_status flashwok_get_kernel(size_t index, flashwok_kernel_info* info, char* message,
                                    size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    const std::vector<KernelInfo> kernels = Kernels();
    if (CheckIndex(check, index, kernels.size()) && CheckResult(check, info)) {
      ToC(kernels[index], info);
    }
    return {};
  });
}

size_t flashwok_num_cpu_targets(void) { return Count(CpuTargets); }

flashwok_status flashwok_get_cpu_target(size_t index, char* name, size_t name_size, char* message,
                                        size_t message_size) {
  return Guard({message, message_size}, [&](Check& check) -> Status {
    const std::vector<std::string> targets = CpuTargets();
    if (!CheckIndex(check, index, targets.size())) return {};
    if (name == nullptr) return Status::Invalid("name: is null, must be given");
    CopyText(targets[index], name, name_size);
    return {};
  });
}

const char* flashwok_version(void) { return Version(); }
const char* flashwok_dtype_name(flashwok_dtype dtype) { return NameFromC(dtype, DType::kInt32); }
const char* flashwok_algorithm_name(flashwok_algorithm algorithm) {
  return NameFromC(algorithm, Algorithm::kV3);
}
const char* flashwok_causal_name(flashwok_causal causal) {
  return NameFromC(causal, Causal::kTopLeft);
}
const char* flashwok_pass_name(flashwok_pass pass) { return NameFromC(pass, Pass::kBackward); }
const char* flashwok_event_kind_name(flashwok_event_kind kind) {
  return NameFromC(kind, EventKind::kSchedule);
}
const char* flashwok_role_name(flashwok_role role) { return NameFromC(role, Role::kDLse); }
