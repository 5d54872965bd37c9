// stmatrix: one warp stores four 8x8 matrices of 16-bit elements to shared memory (sm_90); the
// inverse of LoadMatrix4.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

__device__ __forceinline__ void StoreMatrix4(std::uint32_t address, std::uint32_t r0,
                                             std::uint32_t r1, std::uint32_t r2,
                                             std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace flashwok::cuda::ptx
