// The machine that a figure was measured on.
#pragma once

#include "lib/text.h"

namespace flashwok::cli {

std::string CpuName();
std::string Today();  // "2026-12-01", UTC
Json MachineJson();   // {"name": "cpu", "cpu": ..., "cores": ...}

}  // namespace flashwok::cli
