#include "api/c_convert.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace flashwok {
namespace {

// A struct_size beyond it is one that was never set.
constexpr std::size_t kMaxSize = 1 << 16;

// What the messages call a struct, and the size of its first version, which stays valid when
// fields are added.
struct StructName {
  const char* type;
  std::size_t first_size;
};
constexpr StructName Describe(const flashwok_problem*) {
  return {"problem", offsetof(flashwok_problem, dropout_offset) + sizeof(std::uint64_t)};
}
constexpr StructName Describe(const flashwok_forward_output*) {
  return {"forward_output", offsetof(flashwok_forward_output, row_sum) + sizeof(flashwok_tensor)};
}
constexpr StructName Describe(const flashwok_backward_input*) {
  return {"backward_input", offsetof(flashwok_backward_input, row_sum) + sizeof(flashwok_tensor)};
}
constexpr StructName Describe(const flashwok_gradients*) {
  return {"gradients", offsetof(flashwok_gradients, dbias) + sizeof(flashwok_tensor)};
}
constexpr StructName Describe(const flashwok_execution*) {
  return {"execution", offsetof(flashwok_execution, stop_data) + sizeof(void*)};
}
constexpr StructName Describe(const flashwok_plan_result*) {
  return {"plan_result", offsetof(flashwok_plan_result, workspace_bytes) + sizeof(std::size_t)};
}
constexpr StructName Describe(const flashwok_kernel_info*) {
  return {"kernel_info", offsetof(flashwok_kernel_info, available) + sizeof(std::int32_t)};
}

template <typename Struct>
Struct Defaults() {
  return {};
}
template <>
flashwok_problem Defaults() {
  flashwok_problem defaults{};
  defaults.window_left = Problem{}.window_left;
  defaults.window_right = Problem{}.window_right;
  return defaults;
}
template <>
flashwok_execution Defaults() {
  flashwok_execution defaults{};
  defaults.workspace_limit = Execution{}.workspace_limit;
  return defaults;
}

// What this library knows of a struct; fields that the caller's version lacks are zero.
template <typename Struct>
Struct Known(const Struct* from) {
  Struct known{};
  std::memcpy(&known, from, std::min(from->struct_size, sizeof(Struct)));
  return known;
}

template <typename Struct>
bool CheckSize(Check& check, const char* name, const Struct* given) {
  if (given == nullptr) return check.Invalid(name, ": is null, must be given");
  const auto [type, first_size] = Describe(given);
  return (given->struct_size >= first_size && given->struct_size <= kMaxSize) ||
         check.Invalid(name, ": struct_size is ", given->struct_size, ", must be from ", first_size,
                       " to ", kMaxSize, ", as flashwok_", type, "_init sets it");
}

// Of what is read, no field may be set that only a newer library knows.
template <typename Struct>
bool Read(Check& check, const char* name, const Struct* from, Struct* known) {
  if (!CheckSize(check, name, from)) return false;
  const char* bytes = reinterpret_cast<const char*>(from);
  for (std::size_t at = sizeof(Struct); at < from->struct_size; ++at) {
    if (bytes[at] != 0) {
      return check.Unsupported(name, ": byte ", at, " is set, must be 0 past the ", sizeof(Struct),
                               " bytes that flashwok ", Version(), " knows of this struct");
    }
  }
  *known = Known(from);
  return true;
}

// The value as the enum, whose values are 0 to `last`.
template <typename Enum>
bool EnumFromC(Check& check, const char* name, const char* what, std::int32_t from, Enum last,
               Enum* to) {
  if (!check.Range(name, what, from, 0, static_cast<int>(last))) return false;
  *to = static_cast<Enum>(from);
  return true;
}

template <typename Struct, typename Result>
struct TensorField {
  const char* name;
  flashwok_tensor Struct::*from;
  Tensor Result::*to;
};

template <typename Struct, typename Result, std::size_t kCount>
bool TensorsFromC(Check& check, const TensorField<Struct, Result> (&fields)[kCount],
                  const Struct& from, Result* to) {
  return std::all_of(std::begin(fields), std::end(fields), [&](const auto& field) {
    return FromC(check, field.name, &(from.*field.from), &(to->*field.to));
  });
}

constexpr TensorField<flashwok_problem, Problem> kProblem[] = {
    {"q", &flashwok_problem::q, &Problem::q},
    {"k", &flashwok_problem::k, &Problem::k},
    {"v", &flashwok_problem::v, &Problem::v},
    {"cu_seqlens_q", &flashwok_problem::cu_seqlens_q, &Problem::cu_seqlens_q},
    {"cu_seqlens_k", &flashwok_problem::cu_seqlens_k, &Problem::cu_seqlens_k},
    {"seqused_k", &flashwok_problem::seqused_k, &Problem::seqused_k},
    {"page_table", &flashwok_problem::page_table, &Problem::page_table},
    {"bias", &flashwok_problem::bias, &Problem::bias},
    {"mask", &flashwok_problem::mask, &Problem::mask},
    {"alibi_slopes", &flashwok_problem::alibi_slopes, &Problem::alibi_slopes},
    {"q_descale", &flashwok_problem::q_descale, &Problem::q_descale},
    {"k_descale", &flashwok_problem::k_descale, &Problem::k_descale},
    {"v_descale", &flashwok_problem::v_descale, &Problem::v_descale},
};
constexpr TensorField<flashwok_forward_output, ForwardOutput> kForwardOutput[] = {
    {"o", &flashwok_forward_output::o, &ForwardOutput::o},
    {"lse", &flashwok_forward_output::lse, &ForwardOutput::lse},
    {"row_max", &flashwok_forward_output::row_max, &ForwardOutput::row_max},
    {"row_sum", &flashwok_forward_output::row_sum, &ForwardOutput::row_sum},
};
constexpr TensorField<flashwok_backward_input, BackwardInput> kBackwardInput[] = {
    {"o", &flashwok_backward_input::o, &BackwardInput::o},
    {"lse", &flashwok_backward_input::lse, &BackwardInput::lse},
    {"dout", &flashwok_backward_input::dout, &BackwardInput::dout},
    {"dlse", &flashwok_backward_input::dlse, &BackwardInput::dlse},
    {"row_max", &flashwok_backward_input::row_max, &BackwardInput::row_max},
    {"row_sum", &flashwok_backward_input::row_sum, &BackwardInput::row_sum},
};
constexpr TensorField<flashwok_gradients, Gradients> kGradients[] = {
    {"dq", &flashwok_gradients::dq, &Gradients::dq},
    {"dk", &flashwok_gradients::dk, &Gradients::dk},
    {"dv", &flashwok_gradients::dv, &Gradients::dv},
    {"dbias", &flashwok_gradients::dbias, &Gradients::dbias},
};

}  // namespace

void CopyText(std::string_view text, char* to, std::size_t size) {
  if (to == nullptr || size == 0) return;
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

void CallbackObserver::OnEvent(const Event& event) {
  flashwok_event plain{};
  plain.t0 = event.t0;
  plain.duration = event.duration;
  plain.bytes = event.bytes;
  plain.flops = event.flops;
  plain.kind = static_cast<flashwok_event_kind>(event.kind);
  plain.role = static_cast<flashwok_role>(event.role);
  plain.stage = event.stage;
  plain.masked = event.masked;
  plain.track = event.track;
  plain.head = event.head;
  plain.q_tile = event.q_tile;
  plain.k_tile = event.k_tile;
  callback_(&plain, data_);
}

template <typename Struct>
bool InitFromC(Struct* to, std::size_t struct_size) {
  if (to == nullptr || struct_size < Describe(to).first_size || struct_size > kMaxSize) {
    return false;
  }
  const Struct defaults = Defaults<Struct>();
  std::memset(static_cast<void*>(to), 0, struct_size);
  std::memcpy(to, &defaults, std::min(struct_size, sizeof(Struct)));
  to->struct_size = struct_size;
  return true;
}
template bool InitFromC(flashwok_problem*, std::size_t);
template bool InitFromC(flashwok_forward_output*, std::size_t);
template bool InitFromC(flashwok_backward_input*, std::size_t);
template bool InitFromC(flashwok_gradients*, std::size_t);
template bool InitFromC(flashwok_execution*, std::size_t);
template bool InitFromC(flashwok_plan_result*, std::size_t);
template bool InitFromC(flashwok_kernel_info*, std::size_t);

bool FromC(Check& check, const char* name, const flashwok_tensor* from, Tensor* to) {
  if (from == nullptr) return check.Invalid(name, ": is null, must be given");
  *to = {};
  if (from->rank == 0) return true;
  if (!EnumFromC(check, name, "dtype is ", from->dtype, DType::kInt32, &to->dtype) ||
      !EnumFromC(check, name, "device type is ", from->device_type, DeviceType::kCuda,
                 &to->device.type)) {
    return false;
  }
  to->data = from->data;
  to->rank = from->rank;
  std::copy(std::begin(from->shape), std::end(from->shape), to->shape.begin());
  std::copy(std::begin(from->strides), std::end(from->strides), to->strides.begin());
  to->device.index = from->device_index;
  return true;
}

bool FromC(Check& check, const flashwok_problem* from, Problem* to) {
  flashwok_problem p{};
  if (!Read(check, "problem", from, &p) || !TensorsFromC(check, kProblem, p, to) ||
      !EnumFromC(check, "causal", "is ", p.causal, Causal::kTopLeft, &to->causal) ||
      !EnumFromC(check, "algorithm", "is ", p.algorithm, Algorithm::kV3, &to->algorithm)) {
    return false;
  }
  if (p.has_softmax_scale != 0) to->softmax_scale = p.softmax_scale;
  to->window_left = p.window_left;
  to->window_right = p.window_right;
  to->softcap = p.softcap;
  to->num_splits = p.num_splits;
  to->deterministic = p.deterministic != 0;
  to->dropout_p = p.dropout_p;
  to->dropout_seed = p.dropout_seed;
  to->dropout_offset = p.dropout_offset;
  return true;
}

bool FromC(Check& check, const flashwok_forward_output* from, ForwardOutput* to) {
  flashwok_forward_output output{};
  return Read(check, "output", from, &output) && TensorsFromC(check, kForwardOutput, output, to);
}

bool FromC(Check& check, const flashwok_backward_input* from, BackwardInput* to) {
  flashwok_backward_input input{};
  return Read(check, "input", from, &input) && TensorsFromC(check, kBackwardInput, input, to);
}

bool FromC(Check& check, const flashwok_gradients* from, Gradients* to) {
  flashwok_gradients gradients{};
  return Read(check, "gradients", from, &gradients) &&
         TensorsFromC(check, kGradients, gradients, to);
}

bool FromC(Check& check, const flashwok_execution* from, CallbackObserver* observer,
           Execution* to) {
  if (from == nullptr) return true;
  flashwok_execution execution{};
  if (!Read(check, "execution", from, &execution)) return false;
  to->num_threads = execution.num_threads;
  to->workspace = execution.workspace;
  to->workspace_bytes = execution.workspace_bytes;
  to->workspace_limit = execution.workspace_limit;
  to->tile_q = execution.tile_q;
  to->tile_kv = execution.tile_kv;
  if (execution.kernel != nullptr) to->kernel = execution.kernel;
  to->stream = execution.stream;
  to->stop = execution.stop;
  to->stop_data = execution.stop_data;
  if (execution.observer != nullptr) {
    *observer = CallbackObserver(execution.observer, execution.observer_data);
    to->observer = observer;
  }
  return true;
}

bool FromC(Check& check, flashwok_pass from, Pass* to) {
  return EnumFromC(check, "pass", "is ", from, Pass::kBackward, to);
}

bool CheckResult(Check& check, const flashwok_plan_result* result) {
  if (!CheckSize(check, "result", result)) return false;
  return result->rejections != nullptr || result->rejections_capacity == 0 ||
         check.Invalid("result: rejections is null, must point to rejections_capacity, ",
                       result->rejections_capacity, ", elements");
}

bool CheckResult(Check& check, const flashwok_kernel_info* info) {
  return CheckSize(check, "info", info);
}

void ToC(const PlanResult& from, flashwok_plan_result* to) {
  flashwok_plan_result result = Known(to);
  result.num_rejections = from.rejections.size();
  const std::size_t count = std::min(result.num_rejections, to->rejections_capacity);
  for (std::size_t n = 0; n < count; ++n) {
    flashwok_rejection& rejection = to->rejections[n];
    CopyText(from.rejections[n].kernel, rejection.kernel, sizeof(rejection.kernel));
    CopyText(from.rejections[n].reason, rejection.reason, sizeof(rejection.reason));
  }
  CopyText(from.kernel, result.kernel, sizeof(result.kernel));
  result.algorithm = static_cast<flashwok_algorithm>(from.algorithm);
  result.tile_q = from.tile_q;
  result.tile_kv = from.tile_kv;
  result.num_splits = from.num_splits;
  result.num_threads = from.num_threads;
  result.workspace_bytes = from.workspace_bytes;
  std::memcpy(to, &result, std::min(result.struct_size, sizeof(result)));
}

void ToC(const KernelInfo& from, flashwok_kernel_info* to) {
  flashwok_kernel_info info = Known(to);
  CopyText(from.name, info.name, sizeof(info.name));
  CopyText(from.dtypes, info.dtypes, sizeof(info.dtypes));
  CopyText(from.requirement, info.requirement, sizeof(info.requirement));
  info.pass = static_cast<flashwok_pass>(from.pass);
  info.algorithm = static_cast<flashwok_algorithm>(from.algorithm);
  info.device_type = static_cast<flashwok_device_type>(from.device.type);
  info.available = from.available ? 1 : 0;
  std::memcpy(to, &info, std::min(info.struct_size, sizeof(info)));
}

}  // namespace flashwok
