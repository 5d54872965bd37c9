// bar.sync and bar.arrive: barriers among some warps of a thread block. Number 0 is __syncthreads.
#pragma once

namespace flashwok::cuda::ptx {

__device__ __forceinline__ void BarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts this warp's threads without waiting.
__device__ __forceinline__ void BarrierArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace flashwok::cuda::ptx
