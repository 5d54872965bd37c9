// What Plan decides, with the kernel itself.
#pragma once

#include "cpu/registry.h"
#include "flashwok/attention.h"

namespace flashwok {

struct Choice {
  PlanResult plan;
  const cpu::Kernel* kernel = nullptr;
  cpu::Launch launch;
};

Choice Choose(const Problem& problem, Pass pass, const Execution& execution);

}  // namespace flashwok
