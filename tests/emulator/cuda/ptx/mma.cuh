// Stands for src/cuda/ptx/mma.cuh.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

template <DType kType>
void Mma16816(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  const std::uint32_t b[2] = {b0, b1};
  emulator::MultiplyWarp(kType, d, a, b);
}

}  // namespace flashwok::cuda::ptx
