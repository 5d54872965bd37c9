// Stands for src/cuda/ptx/stmatrix.cuh.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

inline void StoreMatrix4(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                         std::uint32_t r2, std::uint32_t r3) {
  const std::uint32_t r[4] = {r0, r1, r2, r3};
  emulator::StoreMatrices(address, r);
}

}  // namespace flashwok::cuda::ptx
