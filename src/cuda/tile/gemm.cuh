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

// O += P V; V from the reader's first row on, P as PackRows leaves it.
template <DType kType, class ReaderV, int kBlocks, int kPairs, int kCount>
__device__ __forceinline__ void ValueProduct(const std::uint32_t (&P)[kBlocks][kPairs],
                                             const ReaderV& V, float (&O)[kBlocks][kCount]) {
#pragma unroll
  for (int k = 0; k < kPairs / 4; ++k) {
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4Transposed(b, V.At(k, n));
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const auto& a = reinterpret_cast<const std::uint32_t(&)[4]>(P[m][4 * k]);
        ptx::Mma16816<kType>(ColumnBlock(O[m], 2 * n), a, b[0], b[1]);
        ptx::Mma16816<kType>(ColumnBlock(O[m], 2 * n + 1), a, b[2], b[3]);
      }
    }
  }
}

}  // namespace flashwok::cuda
