// ldmatrix: one warp loads four 8x8 matrices of 16-bit elements from shared memory (sm_75).
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

// Lane 8 n + i gives the address of row i of matrix n, 16 bytes; r[n] receives of matrix n the pair
// of columns 2 (l % 4) of row l / 4.
__device__ __forceinline__ void LoadMatrix4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same with every matrix transposed: the pair of rows 2 (l % 4) of column l / 4.
__device__ __forceinline__ void LoadMatrix4Transposed(std::uint32_t (&r)[4],
                                                      std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace flashwok::cuda::ptx
