// mbarrier: a barrier in shared memory that counts arrivals (sm_80) and bytes of bulk copies
// (sm_90).
#pragma once

#include <cstdint>

#include "cuda/ptx/shared_address.cuh"

namespace flashwok::cuda::ptx {

using Mbarrier = std::uint64_t;

__device__ __forceinline__ void MbarrierInit(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes the initialised barriers visible to the copy engine; a block barrier follows.
__device__ __forceinline__ void MbarrierFenceInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void MbarrierArrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives, and makes the phase wait for `bytes` of copies.
__device__ __forceinline__ void MbarrierArriveExpect(Mbarrier* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

// Until the phase of this parity is complete; sm_90 can suspend the thread meanwhile.
#if __CUDA_ARCH__ >= 900
#define FLASHWOK_MBARRIER_WAIT "mbarrier.try_wait"
#else
#define FLASHWOK_MBARRIER_WAIT "mbarrier.test_wait"
#endif
__device__ __forceinline__ void MbarrierWait(Mbarrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      FLASHWOK_MBARRIER_WAIT ".parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
#undef FLASHWOK_MBARRIER_WAIT

}  // namespace flashwok::cuda::ptx
