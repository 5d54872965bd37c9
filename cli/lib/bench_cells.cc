#include "lib/bench_cells.h"

#include <set>

namespace flashwok::cli {
namespace {

struct Grid {
  Pass pass;
  const char* dtype;
  std::vector<std::int64_t> seqlens;
  std::vector<std::int64_t> head_dims;
  std::vector<Algorithm> algorithms;
};

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kMemorySeqlen = 65536;

std::vector<Grid> Grids(bool quick) {
  using enum Algorithm;
  const std::vector<Algorithm> all = {kStandard, kV1, kV2, kV3};
  if (quick) {
    return {{Pass::kForward, "float32", {512}, {64}, all},
            {Pass::kBackward, "float32", {512}, {64}, all},
            {Pass::kForward, "bfloat16", {512}, {64}, {kV3}}};
  }
  return {{Pass::kForward, "float32", {4096}, {64, 128}, all},
          {Pass::kBackward, "float32", {1024, 4096}, {64, 128}, {kV2, kV3}},
          {Pass::kForward, "bfloat16", {4096}, {64, 128}, {kV3}},
          {Pass::kBackward, "bfloat16", {4096}, {64, 128}, {kV3}}};
}

}  // namespace

std::vector<BenchProblem> DefaultProblems(int all_threads, bool quick) {
  std::vector<BenchProblem> problems;
  for (const Grid& grid : Grids(quick)) {
    for (int threads : std::set<int>{1, all_threads}) {
      for (std::int64_t head_dim : grid.head_dims) {
        for (std::int64_t seqlen : grid.seqlens) {
          for (const char* causal : {"none", "bottom_right"}) {
            BenchProblem problem;
            problem.pass = grid.pass;
            problem.workload.seqlen = seqlen;
            problem.workload.num_heads = kHeads;
            problem.workload.head_dim = head_dim;
            problem.workload.dtype = grid.dtype;
            problem.workload.causal = causal;
            problem.threads = threads;
            problem.algorithms = grid.algorithms;
            problems.push_back(problem);
          }
        }
      }
    }
  }
  return problems;
}

WorkloadOptions MemoryProblem() {
  WorkloadOptions options;
  options.seqlen = kMemorySeqlen;
  options.num_heads = 1;
  options.head_dim = 64;
  return options;
}

}  // namespace flashwok::cli
