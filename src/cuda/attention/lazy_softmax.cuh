// Online softmax that corrects the old part only when it must: the running maximum follows the true
// one at a distance of at most 2^kMaxGrowth in P, so most tiles rescale nothing. Exact all the same: m
// cancels in P / l. For the accumulators of tile/fragment.cuh, which are wgmma's too.
#pragma once

#include <cstdint>

#include "cuda/attention/online_softmax.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace flashwok::cuda {

template <int kCols>
struct LazySoftmax {
  float factor;      // of a score, gives units of log2; above 0
  float row_max[2];  // m, in units of log2; before the first key below all of them
  float row_sum[2];  // l of this thread's columns
  float alpha[2];    // what the last move of m made of the old part
  int limit[2];      // the bits of the score above which m moves

  __device__ __forceinline__ explicit LazySoftmax(float score_factor) : factor(score_factor) {
    for (int r = 0; r < 2; ++r) {
      row_max[r] = kLowest;
      row_sum[r] = 0.0f;
      alpha[r] = 1.0f;
      limit[r] = __float_as_int(kLowest);
    }
  }

  // Turns scores into P in place, not yet divided by l. True when the old part must be multiplied
  // by alpha, alike in all lanes.
  __device__ __forceinline__ bool Update(float (&S)[kCols / 2]) {
    // A float's bits order like an integer where it is positive, and a negative bound is passed by
    // 0; three integers are compared in one instruction.
    int high[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kCols / 2; i += 4) {
      high[0] = ptx::Max3(high[0], __float_as_int(S[i]), __float_as_int(S[i + 1]));
      high[1] = ptx::Max3(high[1], __float_as_int(S[i + 2]), __float_as_int(S[i + 3]));
    }
    const bool grew = __any_sync(kAllLanes, high[0] > limit[0] || high[1] > limit[1]);
    if (grew) [[unlikely]] Raise(S);
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) {
      S[i] = ptx::Exp2(__fmaf_rn(S[i], factor, -row_max[i / 2 % 2]));
      row_sum[i / 2 % 2] += S[i];
    }
    return grew;
  }

  // The old part of O, where Update says so.
  template <int kCount>
  __device__ __forceinline__ void Rescale(float (&O)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) O[i] *= alpha[i / 2 % 2];
  }

  // l of the whole row, in all four lanes that share it.
  __device__ __forceinline__ void SumLanes() {
#pragma unroll
    for (int r = 0; r < 2; ++r) row_sum[r] = QuadSum(row_sum[r]);
  }

  __device__ __forceinline__ float Inverse(int r) const {
    return row_sum[r] == 0.0f ? 0.0f : 1.0f / row_sum[r];
  }

  // The natural log of the sum of exponentials; after SumLanes.
  __device__ __forceinline__ float Lse(int r) const { return LogSumExp(row_max[r], row_sum[r]); }

 private:
  // Moves m to the maximum of all scores so far in the rows that need it: a row's result does not
  // depend on the others of its warp.
  __device__ __forceinline__ void Raise(const float (&S)[kCols / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = kMinusInf;
#pragma unroll
      for (int i = 2 * r; i < kCols / 2; i += 4) high = fmaxf(high, fmaxf(S[i], S[i + 1]));
      high = QuadMax(high) * factor;
      high = high > row_max[r] + kMaxGrowth ? high : row_max[r];
      alpha[r] = ptx::Exp2(row_max[r] - high);
      row_sum[r] *= alpha[r];
      row_max[r] = high;
      limit[r] = __float_as_int(__fdividef(high + kMaxGrowth, factor));
    }
  }
};

// tanh to about 1e-6 absolute.
__device__ __forceinline__ float Tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + ptx::Exp2(2.0f * kLog2E * x));
}

// Products to capped scores in units of log2.
template <int kCount>
__device__ __forceinline__ void CapScores(float factor, float softcap_log2, float (&S)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) S[i] = softcap_log2 * Tanh(factor * S[i]);
}

}  // namespace flashwok::cuda
