// The validator and Plan over arbitrary problems: they must answer, whatever the numbers are,
// without overflow, crash or hang, and a refusal must say why. The bytes name a valid problem and
// then the fields of it that are overwritten, so that the deep checks are reached too.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "api/validate.h"
#include "flashwok/attention.h"

namespace flashwok {
namespace {

// Reads numbers from the input; zeros past its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  std::uint8_t Byte() {
    if (empty()) return 0;
    --size_;
    return *data_++;
  }
  template <class T>
  T Raw() {
    std::array<std::uint8_t, sizeof(T)> bytes{};
    for (std::uint8_t& byte : bytes) byte = Byte();
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Small numbers, limits and their neighbours, or anything.
  std::int64_t Integer() {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kNumbers[] = {-1,
                                         -2,
                                         255,
                                         256,
                                         257,
                                         65536,
                                         kMaxLength,
                                         kMaxLength + 1,
                                         std::int64_t{1} << 40,
                                         std::int64_t{1} << 62,
                                         kMax / 8,
                                         kMax / 4,
                                         kMax - 1,
                                         kMax,
                                         -kMax,
                                         -kMax - 1};
    const std::uint8_t kind = Byte();
    if (kind < 128) return kind;
    if (kind < 240) return kNumbers[kind % std::size(kNumbers)];
    return Raw<std::int64_t>();
  }
  double Number() {
    constexpr double kNumbers[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 0.9999999999999999};
    const std::uint8_t kind = Byte();
    return kind < 128 ? kNumbers[kind % std::size(kNumbers)] : Raw<double>();
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Everything that a call is given; the small integer tensors may have data.
struct Call {
  Problem problem;
  ForwardOutput output;
  BackwardInput input;
  Gradients gradients;
  Execution execution;
  std::array<std::array<std::int32_t, 8>, 4> ints{};

  std::array<Tensor*, 27> Tensors() {
    Problem& p = problem;
    return {&p.q,
            &p.k,
            &p.v,
            &p.cu_seqlens_q,
            &p.cu_seqlens_k,
            &p.seqused_k,
            &p.page_table,
            &p.bias,
            &p.mask,
            &p.alibi_slopes,
            &p.q_descale,
            &p.k_descale,
            &p.v_descale,
            &output.o,
            &output.lse,
            &output.row_max,
            &output.row_sum,
            &input.o,
            &input.lse,
            &input.dout,
            &input.dlse,
            &input.row_max,
            &input.row_sum,
            &gradients.dq,
            &gradients.dk,
            &gradients.dv,
            &gradients.dbias};
  }
};

Tensor Shape(DType dtype, std::initializer_list<std::int64_t> shape) {
  return Tensor::Contiguous(nullptr, dtype, shape);
}

// One of the kinds of valid problems.
void Start(Bytes& bytes, Call* call) {
  Problem& p = call->problem;
  const auto dtype = static_cast<DType>(bytes.Byte() % 5);
  const std::uint8_t features = bytes.Byte();
  const bool varlen = features % 4 == 1;
  const bool paged = features % 4 == 2;
  constexpr DType kFloat = DType::kFloat32;
  constexpr DType kInt = DType::kInt32;
  if (varlen) {
    p.q = Shape(dtype, {9, 4, 8});
    p.k = p.v = Shape(dtype, {9, 2, 8});
    p.cu_seqlens_q = p.cu_seqlens_k = Shape(kInt, {3});
    call->output.lse = Shape(kFloat, {4, 9});
  } else {
    p.q = Shape(dtype, {2, 5, 4, 8});
    p.k = p.v = paged ? Shape(dtype, {6, 3, 2, 8}) : Shape(dtype, {2, 7, 2, 8});
    call->output.lse = Shape(kFloat, {2, 4, 5});
  }
  if (paged) p.page_table = Shape(kInt, {2, 4});
  if (paged || (features & 4) != 0) p.seqused_k = Shape(kInt, {2});
  const std::int64_t columns = paged ? 12 : varlen ? 9 : 7;
  if ((features & 8) != 0) p.bias = Shape(kFloat, {1, 4, varlen ? 9 : 5, columns});
  if ((features & 16) != 0) p.mask = Shape(DType::kBool, {2, 1, 1, columns});
  if ((features & 32) != 0) p.alibi_slopes = Shape(kFloat, {4});
  if ((features & 64) != 0) p.k_descale = Shape(kFloat, {2, 2});
  call->output.o = p.q;
  call->input.o = call->input.dout = p.q;
  call->input.lse = call->output.lse;
  call->gradients = {p.q, p.k, p.v, p.bias};
}

// Gives one of the integer tensors data of its own; its extents then stay within them.
void GiveInts(Bytes& bytes, Call* call) {
  Problem& p = call->problem;
  Tensor* tensors[] = {&p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_k, &p.page_table};
  const std::size_t which = bytes.Byte() % 4;
  for (std::int32_t& value : call->ints[which]) value = static_cast<std::int32_t>(bytes.Integer());
  void* data = call->ints[which].data();
  *tensors[which] = which == 3 ? Tensor::Contiguous(data, DType::kInt32, {2, 4})
                               : Tensor::Contiguous(data, DType::kInt32, {bytes.Byte() % 9});
}

void ChangeTensor(Bytes& bytes, Call* call) {
  const auto tensors = call->Tensors();
  Tensor& tensor = *tensors[bytes.Byte() % tensors.size()];
  const std::uint8_t field = bytes.Byte();
  const std::size_t axis = field / 8 % Tensor::kMaxRank;
  if (tensor.data != nullptr) tensor.data = nullptr;
  switch (field % 8) {
    case 0: tensor.rank = static_cast<std::int8_t>(bytes.Byte()); break;
    case 1: tensor.dtype = static_cast<DType>(bytes.Byte()); break;
    case 2: tensor.device = {static_cast<DeviceType>(bytes.Byte()), bytes.Byte()}; break;
    case 3:
    case 4: tensor.strides[axis] = bytes.Integer(); break;
    default: tensor.shape[axis] = bytes.Integer(); break;
  }
}

void ChangeOption(Bytes& bytes, Call* call) {
  Problem& p = call->problem;
  Execution& e = call->execution;
  switch (bytes.Byte() % 14) {
    case 0: p.softmax_scale = bytes.Number(); break;
    case 1: p.causal = static_cast<Causal>(bytes.Byte()); break;
    case 2: p.window_left = bytes.Integer(); break;
    case 3: p.window_right = bytes.Integer(); break;
    case 4: p.softcap = bytes.Number(); break;
    case 5: p.dropout_p = bytes.Number(); break;
    case 6: p.dropout_offset = bytes.Raw<std::uint64_t>(); break;
    case 7: p.algorithm = static_cast<Algorithm>(bytes.Byte()); break;
    case 8: p.num_splits = static_cast<int>(bytes.Integer()); break;
    case 9: e.num_threads = static_cast<int>(bytes.Integer()); break;
    case 10: e.tile_q = static_cast<int>(bytes.Integer()); break;
    case 11: e.tile_kv = static_cast<int>(bytes.Integer()); break;
    case 12: e.workspace_limit = static_cast<std::size_t>(bytes.Integer()); break;
    default: e.workspace_bytes = static_cast<std::size_t>(bytes.Integer()); break;
  }
}

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

void RequireReason(const Status& status) {
  Require(status.ok() == status.message().empty());
  Require(status.message().find('\n') == std::string::npos);
}

void Try(const Call& call, Pass pass) {
  const Status valid = Validate(call.problem, pass);
  RequireReason(valid);
  RequireReason(ValidateExecution(call.execution, call.problem.q.device));
  if (valid.ok()) {
    RequireReason(ValidateForwardOutput(call.problem, call.output));
    RequireReason(ValidateBackward(call.problem, call.input, call.gradients));
  }
  const PlanResult plan = Plan(call.problem, pass, call.execution);
  RequireReason(plan.status);
  if (!plan.status.ok()) return;
  Require(valid.ok() && !plan.kernel.empty());
  Require(plan.workspace_bytes <= call.execution.workspace_limit);
}

}  // namespace
}  // namespace flashwok

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  flashwok::Bytes bytes(data, size);
  flashwok::Call call;
  flashwok::Start(bytes, &call);
  while (!bytes.empty()) {
    const std::uint8_t change = bytes.Byte();
    if (change % 8 == 0) {
      flashwok::GiveInts(bytes, &call);
    } else if (change % 8 < 3) {
      flashwok::ChangeOption(bytes, &call);
    } else {
      flashwok::ChangeTensor(bytes, &call);
    }
  }
  flashwok::Try(call, flashwok::Pass::kForward);
  flashwok::Try(call, flashwok::Pass::kBackward);
  return 0;
}
