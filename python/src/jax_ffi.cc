#include "python/src/jax_ffi.h"

#include <cstring>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashwok/attention.h"
#include "python/src/xla_ffi_abi.h"

namespace flashwok::python {
namespace {

// The call, before it is known whether it is well formed.
struct Call {
  std::map<std::string, Tensor*> arguments, results;
  Problem problem;
  ForwardOutput output;
  BackwardInput input;
  Gradients gradients;
  ForwardOutput parts[2];  // of a merge

  Call() {
    Problem& p = problem;
    arguments = {{"q", &p.q},
                 {"k", &p.k},
                 {"v", &p.v},
                 {"seqused_k", &p.seqused_k},
                 {"bias", &p.bias},
                 {"mask", &p.mask},
                 {"alibi_slopes", &p.alibi_slopes},
                 {"cu_seqlens_q", &p.cu_seqlens_q},
                 {"cu_seqlens_k", &p.cu_seqlens_k},
                 {"page_table", &p.page_table},
                 {"q_descale", &p.q_descale},
                 {"k_descale", &p.k_descale},
                 {"v_descale", &p.v_descale},
                 {"o", &input.o},
                 {"lse", &input.lse},
                 {"dout", &input.dout},
                 {"dlse", &input.dlse},
                 {"o_a", &parts[0].o},
                 {"lse_a", &parts[0].lse},
                 {"o_b", &parts[1].o},
                 {"lse_b", &parts[1].lse}};
    results = {{"o", &output.o},      {"lse", &output.lse},  {"dq", &gradients.dq},
               {"dk", &gradients.dk}, {"dv", &gradients.dv}, {"dbias", &gradients.dbias}};
  }
};

DType FromXla(std::int32_t dtype) {
  switch (dtype) {
    case xla::kF32: return DType::kFloat32;
    case xla::kF16: return DType::kFloat16;
    case xla::kBF16: return DType::kBFloat16;
    case xla::kF8E4M3FN: return DType::kFloat8E4M3;
    case xla::kF8E5M2: return DType::kFloat8E5M2;
    case xla::kPred: return DType::kBool;
    case xla::kS32: return DType::kInt32;
    default: throw std::invalid_argument("a dtype that the library does not take");
  }
}

class Frame {
 public:
  Frame(const xla::CallFrame& frame, DeviceType device) : frame_(frame), device_{device, 0} {
    for (std::int64_t n = 0; n < frame.attributes.size; ++n) {
      const xla::Span& name = *frame.attributes.names[n];
      at_[std::string(name.data, name.size)] = n;
    }
    if (device == DeviceType::kCuda) {
      xla::OrdinalGetArgs args{sizeof(args), nullptr, frame.context, 0};
      if (frame.api->struct_size >= sizeof(xla::Api)) Ask(xla::kOrdinalGet, &args);
      device_.index = args.ordinal;
    }
  }

  void* Stream() const {
    if (device_.type == DeviceType::kCpu) return nullptr;
    xla::StreamGetArgs args{sizeof(args), nullptr, frame_.context, nullptr};
    Ask(xla::kStreamGet, &args);
    return args.stream;
  }

  std::string Text(const char* name) const {
    const std::int64_t n = Find(name, xla::kString);
    const auto& span = *static_cast<const xla::Span*>(frame_.attributes.items[n]);
    return {span.data, span.size};
  }
  double Float(const char* name) const { return Number<double>(name, xla::kF64); }
  std::int64_t Int(const char* name) const { return Number<std::int64_t>(name, xla::kS64); }

  // Names its buffers, in their order.
  void Place(const char* names, const xla::Buffers& buffers,
             const std::map<std::string, Tensor*>& to) const {
    std::istringstream words(Text(names));
    std::string word;
    std::int64_t n = 0;
    for (; words >> word; ++n) {
      const auto found = to.find(word);
      if (found == to.end() || n >= buffers.size) {
        throw std::invalid_argument(std::string(names) + ": '" + word + "' is not in this call");
      }
      *found->second = View(*static_cast<const xla::Buffer*>(buffers.items[n]));
    }
    if (n != buffers.size) throw std::invalid_argument(std::string(names) + ": too few names");
  }

 private:
  void Ask(xla::Slot slot, void* args) const {
    using Function = xla::Error* (*)(void*);
    if (reinterpret_cast<Function>(frame_.api->functions[slot])(args) != nullptr) {
      throw std::runtime_error("XLA does not tell the stream or the device of the call");
    }
  }

  std::int64_t Find(const char* name, std::int32_t kind) const {
    const auto found = at_.find(name);
    if (found == at_.end() || frame_.attributes.kinds[found->second] != kind) {
      throw std::invalid_argument(std::string(name) + ": is missing or of another type");
    }
    return found->second;
  }

  template <typename T>
  T Number(const char* name, std::int32_t dtype) const {
    const std::int64_t n = Find(name, xla::kScalar);
    const auto& scalar = *static_cast<const xla::Scalar*>(frame_.attributes.items[n]);
    if (scalar.dtype != dtype) {
      throw std::invalid_argument(std::string(name) + ": is of another type");
    }
    T value;
    std::memcpy(&value, scalar.value, sizeof(value));
    return value;
  }

  Tensor View(const xla::Buffer& buffer) const {
    if (buffer.rank < 1 || buffer.rank > Tensor::kMaxRank) {
      throw std::invalid_argument("a buffer has " + std::to_string(buffer.rank) + " axes");
    }
    Tensor tensor;
    tensor.data = buffer.data;
    tensor.dtype = FromXla(buffer.dtype);
    tensor.device = device_;
    tensor.rank = static_cast<int>(buffer.rank);
    std::int64_t stride = 1;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      tensor.shape[axis] = buffer.dims[axis];
      tensor.strides[axis] = stride;
      stride *= buffer.dims[axis] > 1 ? buffer.dims[axis] : 1;
    }
    return tensor;
  }

  const xla::CallFrame& frame_;
  Device device_;
  std::map<std::string, std::int64_t> at_;
};

template <typename Enum>
Enum FromName(const std::string& name, Enum last) {
  for (int n = 0; n <= static_cast<int>(last); ++n) {
    if (name == Name(static_cast<Enum>(n))) return static_cast<Enum>(n);
  }
  throw std::invalid_argument("'" + name + "' is unknown");
}

Status Run(const xla::CallFrame& raw, DeviceType device) {
  const Frame frame(raw, device);
  Call call;
  Problem& problem = call.problem;
  frame.Place("arguments", raw.arguments, call.arguments);
  frame.Place("results", raw.results, call.results);
  Execution execution;
  execution.stream = frame.Stream();
  if (frame.Text("pass") == "merge") {
    const ForwardOutput &a = call.parts[0], &b = call.parts[1], &out = call.output;
    return MergeStates(a.o, a.lse, b.o, b.lse, out.o, out.lse, execution);
  }
  problem.softmax_scale = frame.Float("softmax_scale");
  problem.softcap = frame.Float("softcap");
  problem.causal = FromName(frame.Text("causal"), Causal::kTopLeft);
  problem.algorithm = FromName(frame.Text("algorithm"), Algorithm::kV3);
  problem.window_left = frame.Int("window_left");
  problem.window_right = frame.Int("window_right");
  problem.dropout_p = frame.Float("dropout_p");
  problem.dropout_seed = static_cast<std::uint64_t>(frame.Int("dropout_seed"));
  problem.dropout_offset = static_cast<std::uint64_t>(frame.Int("dropout_offset"));
  problem.num_splits = static_cast<int>(frame.Int("num_splits"));
  problem.deterministic = frame.Int("deterministic") != 0;
  if (frame.Text("pass") == "forward") return Forward(problem, call.output, execution);
  return Backward(problem, call.input, call.gradients, execution);
}

std::int32_t Code(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument: return xla::kInvalidArgument;
    case StatusCode::kUnsupported: return xla::kUnimplemented;
    case StatusCode::kOutOfMemory: return xla::kResourceExhausted;
    default: return xla::kInternal;
  }
}

xla::Error* Report(const xla::Api& api, const Status& status) {
  if (status.ok()) return nullptr;
  xla::ErrorCreateArgs args{sizeof(args), nullptr, status.message().c_str(), Code(status.code())};
  using Create = xla::Error* (*)(xla::ErrorCreateArgs*);
  return reinterpret_cast<Create>(api.functions[xla::kErrorCreate])(&args);
}

xla::Error* Handle(xla::CallFrame* frame, DeviceType device) noexcept {
  const xla::Api& api = *frame->api;
  if (frame->extensions != nullptr && frame->extensions->kind == xla::kMetadata) {
    xla::Metadata& metadata =
        *reinterpret_cast<xla::MetadataExtension*>(frame->extensions)->metadata;
    // The structs above are those of every version so far.
    metadata.version = {sizeof(xla::Version), nullptr, api.version.major, api.version.minor};
    metadata.traits = device == DeviceType::kCuda ? xla::kCanBeCaptured : 0;
    if (api.version.major == 0) return nullptr;
    return Report(api, Status::Unsupported("flashwok: this JAX has a newer interface"));
  }
  try {
    return Report(api, Run(*frame, device));
  } catch (const std::exception& error) {
    return Report(api, Status::Invalid(std::string("flashwok: ") + error.what()));
  }
}

xla::Error* HandleCpu(xla::CallFrame* frame) { return Handle(frame, DeviceType::kCpu); }
xla::Error* HandleCuda(xla::CallFrame* frame) { return Handle(frame, DeviceType::kCuda); }

}  // namespace

nanobind::capsule JaxHandler(const char* platform) {
  const bool cuda = std::strcmp(platform, "cuda") == 0;
  return nanobind::capsule(reinterpret_cast<void*>(cuda ? HandleCuda : HandleCpu));
}

}  // namespace flashwok::python
