// Stands for src/cuda/ptx/clock.cuh: a cycle is a turn of a warp or a reading of the clock, and
// every block runs on a multiprocessor of its own.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

inline std::uint64_t Clock() { return emulator::Clock(); }
inline std::uint64_t ClockAfter(float) { return Clock(); }
inline std::uint64_t GlobalTimer() { return emulator::GlobalTimer(); }
inline std::uint32_t Multiprocessor() { return blockIdx.x; }

}  // namespace flashwok::cuda::ptx
