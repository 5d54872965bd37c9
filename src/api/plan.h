// What Plan decides, with the kernel itself.
#pragma once

#include "common/io_model.h"
#include "cpu/registry.h"
#include "cuda/registry.h"
#include "flashwok/attention.h"

namespace flashwok {

struct Choice {
  PlanResult plan;
  const cpu::Kernel* kernel = nullptr;  // one of the two, unless the plan is refused
  cpu::Launch launch;
  const cuda::Kernel* cuda_kernel = nullptr;
  cuda::Launch cuda_launch;
};

// `complete`: the plan also names the kernels after the one that is chosen.
Choice Choose(const Problem& problem, Pass pass, const Execution& execution, bool complete = true);

// Why nothing runs on a CUDA device, or empty.
std::string DeviceObjection(const Device& device);

// What the formulas of io_model need to know of it.
io_model::Tiles ModelTiles(const Choice& choice, const Problem& problem);

}  // namespace flashwok
