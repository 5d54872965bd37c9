// The registry: one row a kernel. Plan chooses from it, Forward and Backward run what was chosen.
#pragma once

#include <span>

#include "cpu/kernels.h"

namespace flashwok::cpu {

struct Kernel {
  const char* name;
  Pass pass;
  Algorithm algorithm;
  const char* dtypes;  // accepted inputs, for people
  bool float8;         // whether float8 is among them
  std::size_t (*bytes)(const Problem&, const Launch&);
  void (*forward)(const Problem&, const ForwardOutput&, const Launch&);
  void (*backward)(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
};

// In the order in which Algorithm::kAuto prefers them.
std::span<const Kernel> Registry();

}  // namespace flashwok::cpu
