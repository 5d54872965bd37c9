// The check of an emulated kernel's results.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cases.h"
#include "tests/emulator/emulator.h"
#include "tests/problem_data.h"
#include "tests/tolerance.h"

namespace flashwok::test {

// Under AddressSanitizer a run is slow, and looks for accesses outside the tensors, which depend on
// the case and the instance: all of those are run, but by one drawn schedule, not by two, and with
// one number of blocks. Bits that must not depend on either are the plain build's.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Runs with the schedule in order and with drawn ones; the bits must be the same. `floor`: of O and
// lse, beside the usual one.
inline void CheckForward(ProblemData& data,
                         const std::function<void(const emulator::Options&)>& run,
                         double floor = 0.0) {
  SCOPED_TRACE(data.Describe());
  const reference::ForwardResult want = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  std::vector<double> first;
  for (std::uint64_t seed : {std::uint64_t{0}, Seed() | 1}) {
    if (kSanitized && seed == 0) continue;
    SCOPED_TRACE("schedule " + std::to_string(seed));
    data.ResetOutputs();
    ASSERT_NO_THROW(run({.seed = seed}));
    ExpectClose("o", data.output.o, want.o, plain.o, floor + Floor(data.problem.q.dtype));
    ExpectClose("lse", data.output.lse, want.lse, plain.lse, floor + 2e-6);
    EXPECT_EQ(data.GuardError(), "");
    const std::vector<double> o = Read(data.output.o);
    if (first.empty()) first = o;
    for (std::size_t i = 0; i < o.size(); ++i) {
      ASSERT_TRUE(o[i] == first[i] || std::isnan(o[i])) << "element " << i;
    }
  }
}

}  // namespace flashwok::test
