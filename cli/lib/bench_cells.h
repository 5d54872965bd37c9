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
};

// float32 forward by all four and backward by V2 and V3, with one and with all threads, and V3 in
// bfloat16. `quick`: a few small ones.
std::vector<BenchProblem> DefaultProblems(int all_threads, bool quick);

// The shape at which extra memory is planned, not run.
WorkloadOptions MemoryProblem();

}  // namespace flashwok::cli
