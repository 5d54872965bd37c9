// One kernel measured: bytes counted in a first run, on the CPU, and seconds in those after it.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/counter.h"
#include "lib/session.h"

namespace flashwok::cli {

inline constexpr Algorithm kAllAlgorithms[] = {Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2,
                                               Algorithm::kV3};

struct Measurement {
  Algorithm algorithm = Algorithm::kAuto;
  Status status;        // why it does not run
  std::string refusal;  // the same in few words
  PlanResult plan;
  std::unique_ptr<TrafficCounter> traffic;  // null on a CUDA device, which counts none
  std::int64_t model_bytes = 0;             // read and written by the formula
  Timing timing;
  double flops = 0.0;
  double result_bytes = 0.0;

  double gflops() const { return flops / timing.median * 1e-9; }
  bool as_modelled() const {
    return traffic == nullptr || traffic->read() + traffic->written() == model_bytes;
  }
};

// Runs up to `repeats` times, fewer once `patience` seconds are over, at least once.
// `progress` moves on by `share` in all.
Measurement Measure(Session& session, Algorithm algorithm, int repeats, double patience,
                    Progress& progress, double share);

// {"algorithm": ..., "kernel": ..., "ms": ..., ...} or {"algorithm": ..., "refused": ...}
Json ToJson(const Measurement& measurement);

}  // namespace flashwok::cli
