// The four algorithms over a range of sequence lengths.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lib/measure.h"

namespace flashwok::cli {

struct SweepRequest {
  std::string range;  // "256:8192"
  Pass pass = Pass::kForward;
  WorkloadOptions workload;
  Device device;
  Execution execution;
  std::string out_dtype;
};

struct SweepPoint {
  std::int64_t seqlen = 0;
  std::vector<Measurement> measurements;  // one an algorithm
};

struct SweepResult {
  Pass pass = Pass::kForward;
  Device device;
  Json problem;  // at the first length
  std::string title;
  std::vector<SweepPoint> points;
};

SweepResult RunSweep(const SweepRequest& request);
Json ToJson(const SweepResult& result);
void PrintSweep(const SweepResult& result);
// Memory and traffic over seqlen, log-log; on a CUDA device time in place of traffic.
void DrawSweep(const SweepResult& result, const std::string& path);

}  // namespace flashwok::cli
