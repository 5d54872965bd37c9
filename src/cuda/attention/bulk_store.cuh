// The way of a warpgroup's 64 rows of O to slow memory by the copy engine: through a tile in shared
// memory, laid out as the engine and wgmma have it.
#pragma once

#include <cstdint>

#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Each warp its 16 rows, rounded. A proxy fence and a barrier of the warpgroup follow.
template <DType kType, class Tile>
__device__ __forceinline__ void StageRows(const float (&O)[Tile::kCols / 2], std::uint32_t tile) {
  const int lane = ptx::Here(LaneIndex());
  const int row = WarpOfGroup() * 16 + lane % 16;
#pragma unroll
  for (int col = 0; col < Tile::kCols; col += 16) {
    const float* o = O + col / 2;
    ptx::StoreMatrix4(tile + Tile::Offset(row, col + lane / 16 * 8), ptx::Pack<kType>(o[0], o[1]),
                      ptx::Pack<kType>(o[2], o[3]), ptx::Pack<kType>(o[4], o[5]),
                      ptx::Pack<kType>(o[6], o[7]));
  }
}

// By one thread, to (row, head, batch) of the tensor.
template <class Tile>
__device__ __forceinline__ void StoreTile(const unsigned char* tile, const ptx::TensorMap& map,
                                          int row, int head, int batch) {
#pragma unroll
  for (int b = 0; b < Tile::kBlocks; ++b) {
    ptx::TmaStore(&map, tile + b * Tile::kBlockBytes, b * Tile::kBlock, row, head, batch);
  }
  ptx::TmaStoreCommit();
}

}  // namespace flashwok::cuda
