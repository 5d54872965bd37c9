#include "lib/bench_cells.h"

#include <set>

namespace flashwok::cli {
namespace {

struct Grid {
  Pass pass;
  std::int64_t seqlen;
  std::vector<const char*> dtypes;
  std::vector<std::int64_t> head_dims;
  std::vector<Algorithm> algorithms;
  double patience;
};

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kMemorySeqlen = 65536;

std::vector<Grid> Grids(bool quick) {
  using enum Algorithm;
  const std::vector<Algorithm> all = {kStandard, kV1, kV2, kV3};
  if (quick) {
    return {{Pass::kForward, 512, {"float32"}, {64}, all, 1.0},
            {Pass::kBackward, 512, {"float32"}, {64}, all, 1.0},
            {Pass::kForward, 512, {"bfloat16"}, {64}, {kV3}, 1.0}};
  }
  const std::vector<const char*> dtypes = {"float32", "bfloat16"};
  return {{Pass::kForward, 4096, dtypes, {64, 128}, all, 12.0},
          {Pass::kBackward, 4096, dtypes, {64, 128}, {kStandard, kV2, kV3}, 12.0}};
}

// The grid at one dtype and number of threads.
void Append(const Grid& grid, const char* dtype, int threads, std::vector<BenchProblem>* problems) {
  for (std::int64_t head_dim : grid.head_dims) {
    for (const char* causal : {"none", "bottom_right"}) {
      BenchProblem problem;
      problem.pass = grid.pass;
      problem.workload.seqlen = grid.seqlen;
      problem.workload.num_heads = kHeads;
      problem.workload.head_dim = head_dim;
      problem.workload.dtype = dtype;
      problem.workload.causal = causal;
      problem.threads = threads;
      problem.algorithms = grid.algorithms;
      problem.patience = grid.patience;
      problems->push_back(problem);
    }
  }
}

}  // namespace

std::vector<BenchProblem> DefaultProblems(int all_threads, bool quick) {
  std::vector<BenchProblem> problems;
  for (const Grid& grid : Grids(quick)) {
    for (const char* dtype : grid.dtypes) {
      for (int threads : std::set<int>{1, all_threads}) Append(grid, dtype, threads, &problems);
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
