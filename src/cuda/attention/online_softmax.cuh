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

// row_max in units of log2. A lane's row_sum is the sum over its own columns; QuadSum joins them.
struct RowState {
  float row_max[2] = {kMinusInf, kMinusInf};
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
// l and O are exact against whichever maximum, and alpha is 1 in almost every tile.
inline constexpr float kMaxGrowth = 8.0f;

// One tile's step (FA2 Algorithm 1, lines 9 and 10): m, S -> P, l, and alpha, by which the row's
// old O is to be multiplied. `factor` > 0. kMayBeEmpty: a row may have seen no key up to here.
template <bool kMayBeEmpty, int kCount>
__device__ __forceinline__ void OnlineSoftmax(float factor, float (&S)[kCount], RowState& state,
                                              float (&alpha)[2]) {
  float max[2], sum[2];
  RowMax(S, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float old = state.row_max[r];
    const float here = factor * max[r];
    state.row_max[r] = here > old + kMaxGrowth ? here : old;
    max[r] = kMayBeEmpty ? SafeMax(state.row_max[r]) : state.row_max[r];
    alpha[r] = ptx::Exp2(old - max[r]);
  }
  Exp2Rows(factor, max, S, sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) state.row_sum[r] = fmaf(state.row_sum[r], alpha[r], sum[r]);
}

// O *= alpha, unless no row of the warp needs it.
template <int kBlocks, int kCount>
__device__ __forceinline__ void Rescale(const float (&alpha)[kBlocks][2],
                                        float (&O)[kBlocks][kCount]) {
  bool same = true;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) same = same && alpha[m][0] == 1.0f && alpha[m][1] == 1.0f;
  if (__all_sync(kAllLanes, same)) return;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) O[m][n] *= alpha[m][n % 4 / 2];
  }
}

// lse of a row, natural log.
__device__ __forceinline__ float LogSumExp(float row_max, float row_sum) {
  return row_sum == 0.0f ? kMinusInf : fmaf(row_max, kLn2, logf(row_sum));
}

}  // namespace flashwok::cuda
