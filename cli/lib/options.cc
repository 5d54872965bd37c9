#include "lib/options.h"

#include <cmath>
#include <utility>

#include "cuda/device.h"
#include "lib/command.h"
#include "lib/machine.h"
#include "lib/text.h"

namespace flashwok::cli {
namespace {

// The groups of the help.
constexpr const char* kTensors = "Tensors";
constexpr const char* kSynthetic = "Synthetic tensors, N(0, 1)";
constexpr const char* kProblem = "Problem";
constexpr const char* kExecution = "Execution";

constexpr const char* kCausalHelp =
    "none; bottom_right: row i sees keys j <= i + seqlen_k - seqlen_q (the usual one); top_left: "
    "row i sees keys j <= i";

void AddTensorOptions(CLI::App& app, WorkloadOptions* options) {
  app.add_option(
         "--input", options->input,
         "One .npz or .safetensors file with q, k, v and whichever of the arguments below it "
         "holds under their names; --seqused-k none leaves one out")
      ->type_name("FILE")
      ->group(kTensors);
  for (const TensorFlag& flag : TensorFlags()) {
    const std::string name = flag.name;
    app.add_option_function<std::string>(
           FlagOf(name), [=](const std::string& text) { options->tensors[name] = text; }, flag.help)
        ->type_name("TENSOR")
        ->group(kTensors);
  }
  for (auto& [name, value] : options->names) {
    app.add_option(FlagOf(name) + "-name", value, "Name of " + name + " in --input")
        ->type_name("NAME")
        ->capture_default_str()
        ->group(kTensors);
  }
  app.add_option("--layout", options->layout,
                 "Axis order in the files: bshd (batch, seqlen, heads, dim) or bhsd")
      ->capture_default_str()
      ->group(kTensors);
}

void AddShapeOptions(CLI::App& app, WorkloadOptions* options) {
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return AddOption(app, flag, value, help)->group(kSynthetic);
  };
  add("--shape", options->shape, "BATCH,SEQLEN_Q,SEQLEN_K,HEADS,HEADS_KV,HEAD_DIM[,HEAD_DIM_V]")
      ->type_name("SHAPE");
  add("--batch", options->batch, "Default 1");
  add("--seqlen", options->seqlen, "Of queries and keys; default 1024");
  add("--seqlen-q", options->seqlen_q, "Of queries");
  add("--seqlen-k", options->seqlen_k, "Of keys");
  add("--heads,--num-heads", options->num_heads, "Default 8");
  add("--heads-kv,--num-heads-kv", options->num_heads_kv, "Default: as --heads");
  add("--head-dim", options->head_dim, "Default 64");
  add("--head-dim-v", options->head_dim_v, "Default: as --head-dim");
  add("--seed", options->seed, "Of the random numbers")->capture_default_str();
  add("--dtype", options->dtype,
      "float32, float16, bfloat16, float8_e4m3 or float8_e5m2; tensors from files are converted to "
      "it");
}

void AddProblemOptions(CLI::App& app, WorkloadOptions* options) {
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return AddOption(app, flag, value, help)->group(kProblem);
  };
  add("--causal", options->causal, kCausalHelp)->capture_default_str();
  add("--window", options->window, "LEFT,RIGHT keys around the diagonal, inclusive; -1: unlimited")
      ->delimiter(',')
      ->expected(2)
      ->type_name("L,R");
  add("--softmax-scale", options->softmax_scale, "Default 1/sqrt(head_dim)");
  add("--softcap", options->softcap, "softcap * tanh(s / softcap); 0: off")->capture_default_str();
  add("--dropout-p", options->dropout_p, "From 0 to below 1")->capture_default_str();
  add("--dropout-seed", options->dropout_seed, "Of Philox")->capture_default_str();
  add("--dropout-offset", options->dropout_offset, "Of Philox")->capture_default_str();
  add("--num-splits", options->num_splits, "Parts to cut the keys into (v2, v3 forward); 0: chosen")
      ->capture_default_str();
  app.add_flag("--deterministic", options->deterministic, "The same gradient bits in every run")
      ->group(kProblem);
}

}  // namespace

void RefuseWithoutProblem(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const char* group : {kTensors, kSynthetic, kProblem, kExecution}) {
      if (option->count() == 0 || option->get_group() != group) continue;
      throw BadInput(
          fmt::format("{}: is given without a problem, such as --seqlen 1024", option->get_name()));
    }
  }
}

const std::vector<TensorFlag>& TensorFlags() {
  static const std::vector<TensorFlag> flags = {
      {"q", "FILE[:NAME], or :NAME of --input"},
      {"k", "As --q"},
      {"v", "As --q"},
      {"dout", "Gradient that arrives at O, for the backward pass"},
      {"bias", "Added to the scores: [batch|1, heads|1, seqlen_q|1, seqlen_k]"},
      {"mask", "bool, keep where true; shaped like the bias"},
      {"alibi_slopes", "[heads] or [batch, heads], numbers, or auto: 2^(-8 (h + 1) / heads)"},
      {"cu_seqlens_q", "int32 [batch + 1] or numbers; q is then [total_q, heads, dim]"},
      {"cu_seqlens_k", "int32 [batch + 1] or numbers"},
      {"seqused_k", "int32 [batch] or numbers: the keys in use"},
      {"page_table", "int32 [batch, max_pages]; k and v are then [pages, page_size, heads, dim]"},
      {"q_descale", "[batch, heads_kv] or one number: what float8 values are multiplied by"},
      {"k_descale", "As --q-descale"},
      {"v_descale", "As --q-descale"},
  };
  return flags;
}

std::string FlagOf(std::string name) {
  for (char& c : name) {
    if (c == '_') c = '-';
  }
  return "--" + name;
}

bool WorkloadOptions::has_shape() const {
  return !shape.empty() || batch || seqlen || seqlen_q || seqlen_k || num_heads || num_heads_kv ||
         head_dim || head_dim_v;
}

void AddWorkloadOptions(CLI::App& app, WorkloadOptions* options) {
  AddTensorOptions(app, options);
  AddShapeOptions(app, options);
  AddProblemOptions(app, options);
}

void AddRunOptions(CLI::App& app, RunOptions* options, bool with_algorithm) {
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return AddOption(app, flag, value, help)->capture_default_str()->group(kExecution);
  };
  if (with_algorithm) add("--algorithm", options->algorithm, "auto, standard, v1, v2 or v3");
  add("--device", options->device, "cpu, cuda or cuda:N");
  add("--threads", options->threads, "0: as many cores as the work is worth; CPU alone");
  add("--tile-q", options->tile_q, "Rows of a Q tile; 0: the kernel's own; CPU alone");
  add("--tile-kv", options->tile_kv, "Keys of a KV tile; 0: the kernel's own; CPU alone");
  add("--kernel", options->kernel, "The only kernel to take in its pass, by its name in `info`");
  add("--workspace-limit", options->workspace_limit,
      "Refuse a kernel that needs more scratch memory, as 512MiB");
  add("--out-dtype", options->out_dtype, "Of O; default: the inputs', for float8 bfloat16");
}

Algorithm ParseAlgorithm(const std::string& flag, const std::string& text) {
  for (Algorithm algorithm :
       {Algorithm::kAuto, Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
    if (text == Name(algorithm)) return algorithm;
  }
  throw BadInput(fmt::format("{}: is '{}', must be auto, standard, v1, v2 or v3", flag, text));
}

Algorithm AskedAlgorithm(const RunOptions& options) {
  const Algorithm algorithm = ParseAlgorithm("--algorithm", options.algorithm);
  for (const KernelInfo& kernel : Kernels()) {
    if (algorithm == Algorithm::kAuto && kernel.name == options.kernel) return kernel.algorithm;
  }
  return algorithm;
}

Causal ParseCausal(const std::string& flag, const std::string& text) {
  for (Causal causal : {Causal::kNone, Causal::kBottomRight, Causal::kTopLeft}) {
    if (text == Name(causal)) return causal;
  }
  throw BadInput(fmt::format("{}: is '{}', must be none, bottom_right or top_left", flag, text));
}

DType ParseDType(const std::string& flag, const std::string& text) {
  static const std::map<std::string, DType> short_names = {
      {"fp32", DType::kFloat32},    {"fp16", DType::kFloat16},
      {"bf16", DType::kBFloat16},   {"float8_e4m3", DType::kFloat8E4M3},
      {"e4m3", DType::kFloat8E4M3}, {"float8_e5m2", DType::kFloat8E5M2},
      {"e5m2", DType::kFloat8E5M2}};
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                      DType::kFloat8E5M2}) {
    if (text == Name(dtype)) return dtype;
  }
  const auto found = short_names.find(text);
  if (found != short_names.end()) return found->second;
  throw BadInput(fmt::format(
      "{}: is '{}', must be float32, float16, bfloat16, float8_e4m3 or float8_e5m2", flag, text));
}

std::int64_t ParseInt(const std::string& flag, std::string_view text) {
  if (const auto value = ParseNumber<std::int64_t>(text)) return *value;
  throw BadInput(fmt::format("{}: {}", flag, NotWhole<std::int64_t>(text)));
}

float ParseFloat(const std::string& flag, std::string_view text) {
  if (const auto value = ParseNumber<float>(text)) return *value;
  throw BadInput(fmt::format("{}: is '{}', must be a number", flag, text));
}

std::size_t ParseBytes(const std::string& flag, const std::string& text) {
  static const std::map<std::string, double> units = {
      {"", 1.0},       {"B", 1.0},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40},
      {"KB", 1e3},     {"MB", 1e6},   {"GB", 1e9},     {"TB", 1e12}};
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto value = ParseNumber<double>(std::string_view(text).substr(0, digits));
  const std::size_t unit = std::min(text.find_first_not_of(' ', digits), text.size());
  const auto found = units.find(text.substr(unit));
  if (value && found != units.end() && *value * found->second < 0x1p63) {
    return static_cast<std::size_t>(*value * found->second);
  }
  throw BadInput(
      fmt::format("{}: is '{}', must be a size below 8 EiB, such as 512MiB or 16GiB", flag, text));
}

Device AskedDevice(const RunOptions& options) {
  const std::string& text = options.device;
  if (text == "cpu") return {};
  const bool numbered = text.starts_with("cuda:");
  const std::optional<int> index =
      numbered ? ParseNumber<int>(std::string_view(text).substr(5)) : std::optional<int>(0);
  if ((!numbered && text != "cuda") || !index || *index < 0) {
    throw BadInput(fmt::format("--device: is '{}', must be cpu, cuda or cuda:N", text));
  }
  const Device device{DeviceType::kCuda, *index};
  for (const auto& [flag, value] : {std::pair("--threads", options.threads),
                                    {"--tile-q", options.tile_q},
                                    {"--tile-kv", options.tile_kv}}) {
    if (value != 0) {
      throw BadInput(fmt::format("{}: is {}, must be left out on {}", flag, value, NameOf(device)));
    }
  }
  return device;
}

void RequireDevice(Device device) {
  if (device.type == DeviceType::kCpu) return;
  const int count = cuda::DeviceCount();
  if (device.index < count) return;
  if (count > 0) {
    throw BadInput(fmt::format("--device: is '{}', must be from cuda:0 to cuda:{}", NameOf(device),
                               count - 1));
  }
  throw BadInput(fmt::format("--device: is '{}', but {}", NameOf(device), cuda::Absence()));
}

Execution MakeExecution(const RunOptions& options) {
  Execution execution;
  execution.num_threads = options.threads;
  execution.tile_q = options.tile_q;
  execution.tile_kv = options.tile_kv;
  execution.kernel = options.kernel;
  execution.workspace_limit = ParseBytes("--workspace-limit", options.workspace_limit);
  return execution;
}

}  // namespace flashwok::cli
