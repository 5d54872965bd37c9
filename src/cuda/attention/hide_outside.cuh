// Masks and softcap of score accumulators; for their layout see lazy_softmax.cuh.
#pragma once

#include "common/mask.h"
#include "cuda/ptx/arithmetic.cuh"

namespace flashwok::cuda {

// The keys that a thread's two rows see.
struct SeenKeys {
  int begin[2], end[2];

  // `row`: the first of the warpgroup.
  __device__ __forceinline__ SeenKeys(const IntervalMask& mask, std::int64_t row) {
    row += threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange seen = mask.Row(row + 8 * r);
      begin[r] = static_cast<int>(seen.begin);
      end[r] = static_cast<int>(seen.end);
    }
  }
};

// Scores of the keys that a row does not see become -inf, whatever they were; column 0 is `key`.
template <int kCols>
__device__ __forceinline__ void HideOutside(float (&S)[kCols / 2], const SeenKeys& seen, int key) {
  const int first = key + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seen.begin[r] - first;
    const int end = seen.end[r] - first;
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int col = i / 2 * 8 + i % 2;
      float& score = S[i / 2 * 4 + 2 * r + i % 2];
      score = col >= begin && col < end ? score : -__builtin_huge_valf();
    }
  }
}

// tanh to about 1e-6 absolute.
__device__ __forceinline__ float Tanh(float x) {
  constexpr float kTwoLog2E = 2.885390081777926815f;
  return 1.0f - __fdividef(2.0f, 1.0f + ptx::Exp2(kTwoLog2E * x));
}

}  // namespace flashwok::cuda
