// The flags that the commands share: which tensors, which problem, how to run it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
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

Execution MakeExecution(const RunOptions& options);

}  // namespace flashwok::cli
