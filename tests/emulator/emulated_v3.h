// Forward V3 on the emulator, called as the library calls it; for files that are compiled without
// the emulator's headers too.
#pragma once

#include <cstdint>

#include "cuda/attention/stamp_log.h"
#include "flashwok/attention.h"

namespace flashwok::test {

struct EmulatedV3 {
  int row = 0;             // of its table
  std::uint64_t seed = 0;  // of the schedule (emulator::Options)
  int blocks = 3;          // at most, of the grid
  int resident_blocks = 1;
  bool time_stamps = false;  // as built with them; for bfloat16 without softcap
  cuda::StampLog* stamps = nullptr;
};

// Throws what the kernel did wrong (emulator::Error), or why there is none.
void RunEmulatedV3(const Problem& problem, const ForwardOutput& output, const EmulatedV3& how);

}  // namespace flashwok::test
