// Online softmax that corrects the old part only when it must: the running maximum follows the true
// one at a distance of at most 2^kSlack in P, so most tiles rescale nothing. Exact all the same: m
// cancels in P / l. For accumulators of mma and wgmma: a thread holds columns 2 (lane % 4) and the
// next of every 8, elements 0 and 1 in row lane / 4 of its warp, 2 and 3 in the row 8 below.
#pragma once

#include <cstdint>

#include "cuda/ptx/arithmetic.cuh"

namespace flashwok::cuda {

template <int kCols>
struct LazySoftmax {
  static constexpr float kSlack = 8.0f;  // in log2: P stays below 256
  static constexpr float kMinusInf = -__builtin_huge_valf();

  float factor;      // of a score, gives units of log2; above 0
  float row_max[2];  // m, in units of scores; -inf before the first key
  float shift[2];    // m * factor, or 0
  float limit[2];    // the score at which m must move
  float row_sum[2];  // l of this thread's columns
  float alpha[2];    // what the last move made of the old part

  __device__ __forceinline__ explicit LazySoftmax(float score_factor) : factor(score_factor) {
    for (int r = 0; r < 2; ++r) {
      row_max[r] = limit[r] = kMinusInf;
      shift[r] = row_sum[r] = 0.0f;
      alpha[r] = 1.0f;
    }
  }

  // Turns scores into P in place, not yet divided by l. True when the old part must be multiplied
  // by alpha, alike in all lanes.
  __device__ __forceinline__ bool Update(float (&S)[kCols / 2]) {
    // A float's bits order like an integer where it is positive, and a negative limit is passed by
    // 0; three integers are compared in one instruction.
    int high[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kCols / 2; i += 4) {
      high[0] = ptx::Max3(high[0], __float_as_int(S[i]), __float_as_int(S[i + 1]));
      high[1] = ptx::Max3(high[1], __float_as_int(S[i + 2]), __float_as_int(S[i + 3]));
    }
    const bool grew = __any_sync(0xFFFFFFFFu, __int_as_float(high[0]) > limit[0] ||
                                                  __int_as_float(high[1]) > limit[1]);
    if (grew) Raise(S);
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) {
      S[i] = ptx::Exp2(__fmaf_rn(S[i], factor, -shift[i / 2 % 2]));
      row_sum[i / 2 % 2] += S[i];
    }
    return grew;
  }

  // l of the whole row, in all four lanes that share it.
  __device__ __forceinline__ void SumLanes() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] += __shfl_xor_sync(0xFFFFFFFFu, row_sum[r], 1);
      row_sum[r] += __shfl_xor_sync(0xFFFFFFFFu, row_sum[r], 2);
    }
  }

  // The natural log of the sum of exponentials; after SumLanes.
  __device__ __forceinline__ float Lse(int r) const {
    constexpr float kLn2 = 0.693147180559945309f;
    return row_sum[r] == 0.0f ? kMinusInf : kLn2 * (shift[r] + log2f(row_sum[r]));
  }

 private:
  // Moves m to the maximum of all scores so far.
  __device__ __forceinline__ void Raise(const float (&S)[kCols / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = row_max[r];
#pragma unroll
      for (int i = 2 * r; i < kCols / 2; i += 4) high = fmaxf(high, fmaxf(S[i], S[i + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
      const float old = shift[r];
      shift[r] = high == kMinusInf ? 0.0f : high * factor;
      alpha[r] = row_max[r] == kMinusInf ? 0.0f : ptx::Exp2(old - shift[r]);
      limit[r] = high + kSlack / factor;
      row_sum[r] *= alpha[r];
      row_max[r] = high;
    }
  }
};

}  // namespace flashwok::cuda
