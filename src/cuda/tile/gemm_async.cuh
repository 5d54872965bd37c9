// The two matrix products of a consumer warpgroup, by wgmma: they run on while the warpgroup does
// other things, until it waits.
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/swizzle.h"

namespace flashwok::cuda {

// S = A B^T [64, BTile::kRows], both in shared memory: operands that are alike in the warpgroup.
template <DType kType, class ATile, class BTile>
__device__ __forceinline__ void MultiplyTransposed(std::uint64_t a_operand, std::uint64_t b_operand,
                                                   float (&S)[BTile::kRows / 2]) {
  const auto offset = [](auto tile, int col) {
    using Tile = decltype(tile);
    return col / Tile::kBlock * Tile::kBlockBytes + col % Tile::kBlock * 2;
  };
  ptx::WgmmaHold(S);
  ptx::WgmmaFence();
#pragma unroll
  for (int col = 0; col < ATile::kCols; col += 16) {
    ptx::Wgmma<kType, BTile::kRows, false>::Shared(
        S, Descriptor::Advance(a_operand, offset(ATile(), col)),
        Descriptor::Advance(b_operand, offset(BTile(), col)), col > 0);
  }
  ptx::WgmmaCommit();
}

// O = P B + (accumulate ? O : 0) [64, BTile::kCols], P packed in registers.
template <DType kType, class BTile>
__device__ __forceinline__ void Multiply(const std::uint32_t (&P)[BTile::kRows / 4],
                                         std::uint64_t b_operand, bool accumulate,
                                         float (&O)[BTile::kCols / 2]) {
  ptx::WgmmaHold(O);
  ptx::WgmmaFence();
#pragma unroll
  for (int row = 0; row < BTile::kRows; row += 16) {
    ptx::Wgmma<kType, BTile::kCols, true>::Registers(
        O, reinterpret_cast<const std::uint32_t(&)[4]>(P[row / 4]),
        Descriptor::Advance(b_operand, row * BTile::kWidth), accumulate || row > 0);
  }
  ptx::WgmmaCommit();
}

}  // namespace flashwok::cuda
