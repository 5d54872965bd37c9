// The flags that the commands share: which tensors, which problem, how to run it.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "flashwok/attention.h"

namespace flashwok::cli {

// The tensor arguments in the order of the help, with what each says there.
struct TensorFlag {
  const char* name;  // of the argument in Problem
  const char* help;
};
const std::vector<TensorFlag>& TensorFlags();
std::string FlagOf(std::string name);  // "seqused_k" -> "--seqused-k"

struct WorkloadOptions {
  // Real tensors: FILE[:NAME], :NAME of `input`, or for small ones the numbers themselves.
  std::string input;
  std::map<std::string, std::string> tensors;
  std::map<std::string, std::string> names{{"q", "q"}, {"k", "k"}, {"v", "v"}, {"dout", "dout"}};
  std::string layout = "bshd";

  // Synthetic ones.
  std::string shape;
  std::optional<std::int64_t> batch, seqlen, seqlen_q, seqlen_k;
  std::optional<std::int64_t> num_heads, num_heads_kv, head_dim, head_dim_v;
  std::uint64_t seed = 1;
  std::string dtype;  // of synthetic tensors; real ones are converted to it

  // The problem.
  std::string causal = "none";
  std::vector<std::int64_t> window{-1, -1};
  std::optional<double> softmax_scale;
  double softcap = 0.0;
  double dropout_p = 0.0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  int num_splits = 0;
  bool deterministic = false;

  bool has_files() const { return !input.empty() || tensors.count("q") != 0; }
  bool has_shape() const;
};

// Throws BadInput when an option of a problem, or of its execution, is given where there is none.
void RefuseWithoutProblem(const CLI::App& app);

struct RunOptions {
  std::string algorithm = "auto";
  std::string device = "cpu";
  std::string out_dtype;
  std::string workspace_limit = "16GiB";
  int threads = 0;
  int tile_q = 0;
  std::string kernel;
  int tile_kv = 0;
};

// The number that all of `text` spells in decimal; nothing when T cannot hold it.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What is wrong with a text that is no T.
template <typename T>
std::string NotWhole(std::string_view text) {
  return fmt::format("is '{}', must be a whole number from {} to {}", text,
                     std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
}

template <typename Option>
struct NumberOf {  // of one or several optional ones
  using Type = Option;
};
template <typename T>
struct NumberOf<std::optional<T>> : NumberOf<T> {};
template <typename T>
struct NumberOf<std::vector<T>> : NumberOf<T> {};

// app.add_option, but what an integer cannot hold is refused; CLI11 wraps it or takes the nearest.
template <typename Option>
CLI::Option* AddOption(CLI::App& app, const std::string& flag, Option& value,
                       const std::string& help) {
  CLI::Option* option = app.add_option(flag, value, help);
  using Number = typename NumberOf<Option>::Type;
  if constexpr (std::is_integral_v<Number>) {
    option->transform(CLI::Validator(
        [](std::string& text) {
          const std::optional<Number> number = ParseNumber<Number>(text);
          if (!number) return NotWhole<Number>(text);
          text = std::to_string(*number);  // without zeros, which CLI11 takes for octal
          return std::string();
        },
        ""));
  }
  return option;
}

void AddWorkloadOptions(CLI::App& app, WorkloadOptions* options);
// `with_algorithm`: false for the commands that go through all of them.
void AddRunOptions(CLI::App& app, RunOptions* options, bool with_algorithm = true);

// These throw BadInput, naming `flag`.
// --algorithm, or that of --kernel.
Algorithm AskedAlgorithm(const RunOptions& options);
Algorithm ParseAlgorithm(const std::string& flag, const std::string& text);
Causal ParseCausal(const std::string& flag, const std::string& text);
DType ParseDType(const std::string& flag, const std::string& text);
std::size_t ParseBytes(const std::string& flag, const std::string& text);  // "512MiB"
std::int64_t ParseInt(const std::string& flag, std::string_view text);
float ParseFloat(const std::string& flag, std::string_view text);

// The device of the kernels, and that it is there; refuses the options that are the CPU's alone.
Device AskedDevice(const RunOptions& options);
void RequireDevice(Device device);
Execution MakeExecution(const RunOptions& options);

}  // namespace flashwok::cli
