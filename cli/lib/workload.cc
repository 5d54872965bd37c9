#include "lib/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "api/validate.h"
#include "common/dtype.h"
#include "common/layout.h"
#include "lib/command.h"

namespace flashwok::cli {
namespace {

struct Source {
  std::string file;
  std::string name;
};

// FILE[:NAME]; a file whose own name has a colon is taken as it is.
Source ParseSource(const std::string& text, const std::string& input) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text)) return {text, ""};
  const std::string file = text.substr(0, colon);
  return {file.empty() ? input : file, text.substr(colon + 1)};
}

bool IsNumbers(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.,-+eE") == std::string::npos &&
         !std::filesystem::exists(text);
}

bool IsInteger(const std::string& argument) {
  return argument.starts_with("cu_seqlens") || argument == "seqused_k" || argument == "page_table";
}

bool IsInput(const std::string& argument) {
  return argument == "q" || argument == "k" || argument == "v" || argument == "dout";
}

io::HostTensor Converted(const io::HostTensor& tensor, DType dtype) {
  io::HostTensor result = io::HostTensor::Make(dtype, tensor.shape());
  const Tensor from = tensor.View();
  const Tensor to = result.View();
  for (std::int64_t i = 0; i < from.num_elements(); ++i) {
    StoreFromFloat(to.data, dtype, i, LoadAsFloat(from.data, from.dtype, i));
  }
  return result;
}

}  // namespace

Workload::Workload(const WorkloadOptions& options, Pass pass, Algorithm algorithm, Data data)
    : bhsd_(options.layout == "bhsd"), with_data_(data == Data::kMake) {
  if (!bhsd_ && options.layout != "bshd") {
    throw BadInput(fmt::format("--layout: is '{}', must be bshd or bhsd", options.layout));
  }
  SetOptions(options);
  problem.algorithm = algorithm;
  Sources(options, pass);
  synthetic_ = sources_.count("q") == 0;
  if (synthetic_) MakeAll(options, pass);
  ReadAll(options);
  Check(Validate(problem, pass));
}

void Workload::SetOptions(const WorkloadOptions& options) {
  problem.causal = ParseCausal("--causal", options.causal);
  problem.window_left = options.window[0];
  problem.window_right = options.window[1];
  problem.softmax_scale = options.softmax_scale;
  problem.softcap = options.softcap;
  problem.dropout_p = options.dropout_p;
  problem.dropout_seed = options.dropout_seed;
  problem.dropout_offset = options.dropout_offset;
  problem.num_splits = options.num_splits;
  problem.deterministic = options.deterministic;
}

void Workload::Sources(const WorkloadOptions& options, Pass pass) {
  sources_ = options.tensors;
  if (!options.input.empty()) {
    for (const auto& [argument, name] : options.names) {
      if (argument == "dout" && pass != Pass::kBackward) continue;
      sources_.try_emplace(argument, ":" + name);
    }
  }
  if (!options.input.empty()) TakeNamed(options.input, pass);
  std::erase_if(sources_, [](const auto& source) { return source.second == "none"; });
  const auto has = [&](const char* argument) { return sources_.count(argument) != 0; };
  const bool any = has("q") || has("k") || has("v");
  for (const char* argument : {"q", "k", "v"}) {
    if (any && !has(argument)) {
      throw BadInput(fmt::format("{}: is absent, must be given with the others of q, k and v",
                                 FlagOf(argument)));
    }
  }
  if (any && pass == Pass::kBackward && !has("dout")) {
    throw BadInput("--dout: is absent, must be given for the backward pass of tensors from files");
  }
  if (any && options.has_shape()) {
    throw BadInput("--shape: is given with tensors from files, which have shapes of their own");
  }
  for (const auto& [argument, text] : sources_) {
    if (text.starts_with(':') && options.input.empty()) {
      throw BadInput(
          fmt::format("{}: is '{}', a tensor of --input, which is absent", FlagOf(argument), text));
    }
  }
}

// A tensor of --input that has the name of an argument is that argument.
void Workload::TakeNamed(const std::string& input, Pass pass) {
  std::vector<io::TensorEntry> entries;
  Require(io::ListTensors(input, &entries));
  for (const TensorFlag& flag : TensorFlags()) {
    const std::string name = flag.name;
    const bool present = std::any_of(entries.begin(), entries.end(),
                                     [&](const auto& entry) { return entry.name == name; });
    if (present && (name != "dout" || pass == Pass::kBackward)) {
      sources_.try_emplace(name, ":" + name);
    }
  }
}

void Workload::ReadAll(const WorkloadOptions& options) {
  for (const TensorFlag& flag : TensorFlags()) {
    const auto source = sources_.find(flag.name);
    if (source == sources_.end()) continue;
    const std::string& text = source->second;
    Tensor tensor;
    if (text == "auto" && source->first == "alibi_slopes") {
      tensor = AutoSlopes();
    } else if (IsNumbers(text)) {
      tensor = Numbers(source->first, text);
    } else {
      tensor = Read(source->first, options);
    }
    const bool swap = bhsd_ && IsInput(source->first) && tensor.rank >= 3;
    Slot(source->first) = swap ? SwapHeads(tensor) : tensor;
  }
}

Tensor Workload::Read(const std::string& argument, const WorkloadOptions& options) {
  const Source source = ParseSource(sources_[argument], options.input);
  sources_[argument] = source.file + (source.name.empty() ? "" : ":" + source.name);
  io::HostTensor tensor;
  Require(io::ReadTensor(source.file, source.name, &tensor), argument);
  if (static_cast<int>(tensor.shape().size()) > Tensor::kMaxRank) {
    throw BadInput(fmt::format("{}: {}: has {} axes, must have at most {}", sources_[argument],
                               argument, tensor.shape().size(), Tensor::kMaxRank));
  }
  if (!options.dtype.empty() && IsInput(argument)) {
    tensor = Converted(tensor, ParseDType("--dtype", options.dtype));
  }
  return Store(std::move(tensor));
}

// A vector of numbers from the command line; a single descale stands for every batch and head.
Tensor Workload::Numbers(const std::string& argument, const std::string& text) {
  const std::string flag = FlagOf(argument);
  const std::vector<std::string> parts = Split(text, ',');
  const auto count = static_cast<std::int64_t>(parts.size());
  if (argument.ends_with("_descale") && count == 1) {
    Check(Validate(problem, Pass::kForward));  // so that it has a batch and heads
    const Layout layout(problem);
    const Tensor tensor =
        Store(io::HostTensor::Make(DType::kFloat32, {layout.batch, layout.num_heads_kv}));
    std::fill_n(static_cast<float*>(tensor.data), tensor.num_elements(), ParseFloat(flag, text));
    return tensor;
  }
  if (!IsInteger(argument)) {
    const Tensor tensor = Store(io::HostTensor::Make(DType::kFloat32, {count}));
    for (std::int64_t i = 0; i < count; ++i) {
      static_cast<float*>(tensor.data)[i] = ParseFloat(flag, parts[i]);
    }
    return tensor;
  }
  const Tensor tensor = Store(io::HostTensor::Make(DType::kInt32, {count}));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = ParseInt(flag, parts[i]);
    if (value != static_cast<std::int32_t>(value)) {
      throw BadInput(fmt::format("{}: is {}, must fit in 32 bits", flag, value));
    }
    static_cast<std::int32_t*>(tensor.data)[i] = static_cast<std::int32_t>(value);
  }
  return tensor;
}

// The slopes of the ALiBi paper for a power of two of heads: 2^(-8 (h + 1) / num_heads).
Tensor Workload::AutoSlopes() {
  const std::int64_t num_heads = problem.q.rank < 2 ? 0 : problem.q.shape[problem.q.rank - 2];
  io::HostTensor slopes = io::HostTensor::Make(DType::kFloat32, {num_heads});
  const Tensor view = slopes.View();
  for (std::int64_t h = 0; h < num_heads; ++h) {
    static_cast<float*>(view.data)[h] =
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(h + 1) / num_heads));
  }
  return Store(std::move(slopes));
}

Tensor Workload::Store(io::HostTensor tensor) {
  storage_.push_back(std::move(tensor));
  return storage_.back().View();
}

Tensor& Workload::Slot(const std::string& argument) {
  const std::map<std::string, Tensor*> slots = {{"q", &problem.q},
                                                {"k", &problem.k},
                                                {"v", &problem.v},
                                                {"dout", &dout},
                                                {"bias", &problem.bias},
                                                {"mask", &problem.mask},
                                                {"alibi_slopes", &problem.alibi_slopes},
                                                {"cu_seqlens_q", &problem.cu_seqlens_q},
                                                {"cu_seqlens_k", &problem.cu_seqlens_k},
                                                {"seqused_k", &problem.seqused_k},
                                                {"page_table", &problem.page_table},
                                                {"q_descale", &problem.q_descale},
                                                {"k_descale", &problem.k_descale},
                                                {"v_descale", &problem.v_descale}};
  return *slots.at(argument);
}

void Workload::Check(const Status& status) const {
  const std::string& message = status.message();
  const auto source = sources_.find(message.substr(0, message.find(':')));
  const bool from_file = source != sources_.end() && !IsNumbers(source->second);
  Require(status, from_file ? source->second : "");
}

Tensor SwapHeads(const Tensor& tensor) {
  Tensor swapped = tensor;
  std::swap(swapped.shape[tensor.rank - 3], swapped.shape[tensor.rank - 2]);
  std::swap(swapped.strides[tensor.rank - 3], swapped.strides[tensor.rank - 2]);
  return swapped;
}

}  // namespace flashwok::cli
