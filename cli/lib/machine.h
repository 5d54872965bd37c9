// The machine that a figure was measured on.
#pragma once

#include "flashwok/tensor.h"
#include "lib/text.h"

namespace flashwok::cli {

std::string CpuName();
std::string Today();  // "2026-12-01", UTC
Json MachineJson();   // {"name": "cpu", "cpu": ..., "cores": ...}
// {"name": "cuda:0", "gpu": ..., "compute_capability": "9.0"} of each CUDA device; without one
// {"name": "cuda", "absent": ...}, which says why.
Json CudaDevicesJson();

std::string NameOf(Device device);   // "cpu", "cuda:0"
std::string TitleOf(Device device);  // "the CPU", "cuda:0, NVIDIA H200"; "cuda:9" where none is

}  // namespace flashwok::cli
