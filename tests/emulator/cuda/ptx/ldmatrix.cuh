// Stands for src/cuda/ptx/ldmatrix.cuh.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

inline void LoadMatrix4(std::uint32_t (&r)[4], std::uint32_t address) {
  emulator::LoadMatrices(r, address, false);
}
inline void LoadMatrix4Transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  emulator::LoadMatrices(r, address, true);
}

}  // namespace flashwok::cuda::ptx
