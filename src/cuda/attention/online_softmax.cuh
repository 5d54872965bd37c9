// Online softmax on 16 rows of scores as a warp holds them (tile/fragment.cuh; an accumulator of
// wgmma is the same). Scores come in as the product leaves them; `factor` makes them log2 scores
// and is folded into the exponential's one FMA. Index 0 is row lane / 4, index 1 is 8 further.
#pragma once

#include <cmath>
#include <limits>

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
inline constexpr float kLowest = -std::numeric_limits<float>::max();

// row_max in units of log2, before the first key below all of them. A lane's row_sum is the sum over
// its own columns; QuadSum joins them.
struct RowState {
  float row_max[2] = {kLowest, kLowest};
  float row_sum[2] = {0.0f, 0.0f};
};

__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// The largest score of each row; a NaN is passed over and shows in its exponential.
template <int kCount>
__device__ __forceinline__ void RowMax(const float (&S)[kCount], float (&max)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    max[r] = fmaxf(S[2 * r], S[2 * r + 1]);
#pragma unroll
    for (int n = 4; n < kCount; n += 4) {
      max[r] = fmaxf(fmaxf(max[r], S[n + 2 * r]), S[n + 2 * r + 1]);
    }
    max[r] = QuadMax(max[r]);
  }
}

// The reference for exp2: a row that has seen no key yet keeps 2^(-inf - 0) = 0.
__device__ __forceinline__ float SafeMax(float row_max) {
  return row_max == kMinusInf ? 0.0f : row_max;
}

// S -> P = 2^(factor S - max); returns what this lane's columns add to the sums.
template <int kCount>
__device__ __forceinline__ void Exp2Rows(float factor, const float (&max)[2], float (&S)[kCount],
                                         float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < kCount; n += 4) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        S[n + e] = ptx::Exp2(fmaf(S[n + e], factor, -max[r]));
        sum[r] += S[n + e];
      }
    }
  }
}

// A row keeps its old maximum until a score is 2^8 above it: P stays small enough for any dtype,
// l and O are exact against whichever maximum, and few tiles raise one.
inline constexpr float kMaxGrowth = 8.0f;

// Whether a score is that far above its row's maximum, in any row of the warp; or all are below 0
// and might be. A float's bits order like an integer where it is positive: three at a time.
template <int kBlocks, int kCount>
__device__ __forceinline__ bool MayGrow(float factor, const float (&S)[kBlocks][kCount],
                                        const RowState (&state)[kBlocks]) {
  bool grown = false;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int max = 0;
#pragma unroll
      for (int n = 2 * r; n < kCount; n += 4) {
        max = ptx::Max3(max, __float_as_int(S[m][n]), __float_as_int(S[m][n + 1]));
      }
      grown |= factor * __int_as_float(max) > state[m].row_max[r] + kMaxGrowth;
    }
  }
  return __any_sync(kAllLanes, grown);
}

// O *= alpha.
template <int kCount>
__device__ __forceinline__ void Rescale(const float (&alpha)[2], float (&O)[kCount]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) O[n] *= alpha[n % 4 / 2];
}

// Raises m of the rows that have a score so far above it, and brings old l and O to it. What becomes
// of a row does not depend on the others.
template <int kCount, int kCols>
__device__ __forceinline__ void Raise(float factor, const float (&S)[kCount], RowState& state,
                                      float (&O)[kCols]) {
  float max[2], alpha[2];
  RowMax(S, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float old = state.row_max[r];
    const float here = factor * max[r];
    state.row_max[r] = here > old + kMaxGrowth ? here : old;
    alpha[r] = ptx::Exp2(old - state.row_max[r]);
    state.row_sum[r] *= alpha[r];
  }
  Rescale(alpha, O);
}

// One tile's step (FA2 Algorithm 1, lines 9 and 10) for blocks of 16 rows: m, S -> P, l, and old O
// is multiplied by alpha. `factor` > 0.
template <int kBlocks, int kCount, int kCols>
__device__ __forceinline__ void OnlineSoftmax(float factor, float (&S)[kBlocks][kCount],
                                              RowState (&state)[kBlocks],
                                              float (&O)[kBlocks][kCols]) {
  const bool grown = MayGrow(factor, S, state);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    if (grown) Raise(factor, S[m], state[m], O[m]);
    float sum[2];
    Exp2Rows(factor, state[m].row_max, S[m], sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) state[m].row_sum[r] += sum[r];
  }
}

// lse of a row, natural log.
__device__ __forceinline__ float LogSumExp(float row_max, float row_sum) {
  return row_sum == 0.0f ? kMinusInf : fmaf(row_max, kLn2, logf(row_sum));
}

}  // namespace flashwok::cuda
