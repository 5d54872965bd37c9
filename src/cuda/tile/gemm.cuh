// The two products of attention on the tensor cores, for kBlocks blocks of 16 rows a warp: each
// fragment of K or V that a warp reads serves all its blocks.
#pragma once

#include "cuda/ptx/mma.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// S = Q K^T over kHeadDim columns; K from the reader's first row on.
template <DType kType, int kHeadDim, class ReaderQ, class ReaderK, int kBlocks, int kCount>
__device__ __forceinline__ void ScoreProduct(const ReaderQ& Q, const ReaderK& K,
                                             float (&S)[kBlocks][kCount]) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) S[m][n] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[kBlocks][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) ptx::LoadMatrix4(a[m], Q.At(m, k));
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4(b, K.At(n, k));
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        ptx::Mma16816<kType>(ColumnBlock(S[m], 2 * n), a[m], b[0], b[1]);
        ptx::Mma16816<kType>(ColumnBlock(S[m], 2 * n + 1), a[m], b[2], b[3]);
      }
    }
  }
}

// O += P V; V from the reader's first row on.
template <DType kType, class ReaderV, int kBlocks, int kSteps, int kCount>
__device__ __forceinline__ void ValueProduct(const std::uint32_t (&P)[kBlocks][kSteps][4],
                                             const ReaderV& V, float (&O)[kBlocks][kCount]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4Transposed(b, V.At(k, n));
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        ptx::Mma16816<kType>(ColumnBlock(O[m], 2 * n), P[m][k], b[0], b[1]);
        ptx::Mma16816<kType>(ColumnBlock(O[m], 2 * n + 1), P[m][k], b[2], b[3]);
      }
    }
  }
}

}  // namespace flashwok::cuda
