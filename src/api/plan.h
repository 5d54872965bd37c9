// What Plan decides, with the kernel itself.
#pragma once

#include "common/io_model.h"
#include "cpu/registry.h"
#include "flashwok/attention.h"

namespace flashwok {

struct Choice {
  PlanResult plan;
  const cpu::Kernel* kernel = nullptr;
  cpu::Launch launch;
};

Choice Choose(const Problem& problem, Pass pass, const Execution& execution);

// What the formulas of io_model need to know of it.
io_model::Tiles ModelTiles(const Choice& choice);

}  // namespace flashwok
