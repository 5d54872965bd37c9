// What the benchmark measures: problems, and the algorithms that run each.
#pragma once

#include <string>
#include <vector>

#include "lib/options.h"

namespace flashwok::cli {

struct BenchProblem {
  Pass pass = Pass::kForward;
  WorkloadOptions workload;
  int threads = 1;
  std::vector<Algorithm> algorithms;
  double patience = 8.0;  // seconds of timed runs, the peer's too, after which no round starts
};

// float32 and bfloat16, head_dim 64 and 128, full and causal, with one and with all threads: the
// forward pass by all four at seqlen 4096, the backward pass by standard, V2 and V3 at 1024.
// `quick`: a few small ones.
std::vector<BenchProblem> DefaultProblems(int all_threads, bool quick);

// The shape at which extra memory is planned, not run.
WorkloadOptions MemoryProblem();

}  // namespace flashwok::cli
