// What tells the time, and the place, on the device.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

// Cycles of this multiprocessor.
__device__ __forceinline__ std::uint64_t Clock() {
  std::uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// The same, read when what led to x >= 0 has been computed; as WgmmaAfter, but no branch.
__device__ __forceinline__ std::uint64_t ClockAfter(float x) {
  std::uint64_t cycles;
  asm volatile(
      "{ .reg .pred p; setp.geu.f32 p, %1, 0f00000000; mov.u64 %0, 0; @p mov.u64 %0, %%clock64; }"
      : "=l"(cycles)
      : "f"(x)
      : "memory");
  return cycles;
}

// Nanoseconds, the same on all of them; it moves in steps.
__device__ __forceinline__ std::uint64_t GlobalTimer() {
  std::uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  return nanoseconds;
}

// The number of this multiprocessor.
__device__ __forceinline__ std::uint32_t Multiprocessor() {
  std::uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

}  // namespace flashwok::cuda::ptx
