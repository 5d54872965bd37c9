// The registry: one row a kernel. Plan chooses from it, Forward and Backward run what was chosen.
#pragma once

#include <span>
#include <string>

#include "cpu/kernels.h"

namespace flashwok::cpu {

struct Kernel {
  const char* name;
  Pass pass;
  Algorithm algorithm;
  std::span<const DType> dtypes;  // of the inputs
  std::size_t (*bytes)(const Problem&, const Launch&);
  void (*forward)(const Problem&, const ForwardOutput&, const Launch&) = nullptr;
  void (*backward)(const Problem&, const BackwardInput&, const Gradients&, const Launch&) = nullptr;
  // The instructions without which it does not run, and their name.
  const Bf16Products* (*products)() = nullptr;
  const char* requirement = "";
};

inline bool Available(const Kernel& kernel) {
  return kernel.products == nullptr || kernel.products() != nullptr;
}

// In the order in which Algorithm::kAuto prefers them.
std::span<const Kernel> Registry();

}  // namespace flashwok::cpu
