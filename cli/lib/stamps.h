// The time stamps that V3 left in a StampLog, read: which role did what, from when to when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/attention/stamp_log.h"

namespace flashwok::cli {

struct StampedStep {
  cuda::V3Step step{};
  std::int64_t begin = 0, end = 0;                  // ns from the first stamp of all
  std::int32_t batch = -1, head = -1, q_tile = -1;  // -1: there was no more work
  std::int32_t k_tile = -1;                         // or none
  int work = -1;                                    // which of the role's work tiles
};

struct StampedBlock {
  int number = 0;  // in the grid
  int multiprocessor = 0;
  double mhz = 0.0;                                                    // of its clock meanwhile
  std::int64_t marks = 0;                                              // made
  std::int64_t lost = 0;                                               // of them, not kept
  std::array<std::vector<StampedStep>, cuda::StampLog::kRoles> roles;  // the producer's first
};

// `log`: StampLog::Bytes of them. Throws BadInput where a block was chosen that did not run,
// Failure where the clocks stood still.
std::vector<StampedBlock> ReadStamps(const std::vector<std::byte>& log);

}  // namespace flashwok::cli
