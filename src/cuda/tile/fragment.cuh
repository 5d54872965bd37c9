// Fragments: how a warp holds 16 rows in its registers, and how it reads operands from a tile.
// An accumulator of 16 rows is a flat float[kCols / 2]: element 4 n + e of a lane is column
// 8 n + 2 (lane % 4) + e % 2 of row lane / 4 + 8 (e / 2). A quad (4 lanes) holds two whole rows.
#pragma once

#include <cstdint>

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashwok::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ int LaneIndex() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int WarpIndex() { return static_cast<int>(threadIdx.x / 32); }
// Of the four of a warpgroup.
__device__ __forceinline__ int WarpOfGroup() {
  return ptx::Here(static_cast<int>(threadIdx.x / 32 % 4));
}
// This lane's first row and first column in an accumulator.
__device__ __forceinline__ int FragmentRow() { return static_cast<int>(threadIdx.x % 32 / 4); }
__device__ __forceinline__ int FragmentCol() { return static_cast<int>(threadIdx.x % 4 * 2); }

// Columns [8 n, 8 n + 8) of an accumulator.
template <int kCount>
__device__ __forceinline__ float (&ColumnBlock(float (&S)[kCount], int n))[4] {
  return *reinterpret_cast<float(*)[4]>(&S[4 * n]);
}

// Which 8x8 matrices of a 16x16 block a lane addresses: those of A and of a transposed B go down
// the rows first, those of B along the columns first.
enum class Walk : std::uint8_t { kRowsFirst, kColsFirst };

// Addresses for LoadMatrix4 of the 16x16 blocks of a tile, from row `row0` on. The swizzle costs
// one XOR an address: row and lane are in `base`, the column is a constant.
template <class Tile, Walk kWalk>
struct BlockReader {
  std::uint32_t base;

  __device__ __forceinline__ BlockReader(const Tile& tile, int row0) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned row = kWalk == Walk::kRowsFirst ? lane % 16 : lane / 16 * 8 + lane % 8;
    const unsigned chunk = kWalk == Walk::kRowsFirst ? lane / 16 : lane / 8 % 2;
    base = tile.At(row0 + static_cast<int>(row), static_cast<int>(chunk));
  }
  // The same reader, whose addresses are computed where they are used, not ahead of a loop.
  __device__ __forceinline__ BlockReader Here() const {
    BlockReader reader = *this;
    reader.base = static_cast<std::uint32_t>(ptx::Here(static_cast<int>(base)));
    return reader;
  }
  // The reader of the columns from 16 col on: as many of them as `col` is a multiple of.
  __device__ __forceinline__ BlockReader From(int col) const {
    BlockReader reader = *this;
    reader.base = At(0, col);
    return reader;
  }
  // Block [16 row, 16 col].
  __device__ __forceinline__ std::uint32_t At(int row, int col) const {
    const int chunk = 2 * col;
    return (base ^ static_cast<std::uint32_t>(chunk % Tile::kSpan * 16)) +
           static_cast<std::uint32_t>(chunk / Tile::kSpan * Tile::kSpan * 16 +
                                      16 * row * Tile::kRowBytes);
  }
};

// All columns of an accumulator, rounded: P[4 k ...] is the A of columns [16 k, 16 k + 16).
template <DType kType, int kCount>
__device__ __forceinline__ void PackRows(const float (&S)[kCount], std::uint32_t (&P)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) P[i] = ptx::Pack<kType>(S[2 * i], S[2 * i + 1]);
}

}  // namespace flashwok::cuda
