// The interval mask of V3's accumulators: the ends are found once a Q tile, in 32 bits.
#pragma once

#include "common/mask.h"
#include "cuda/attention/online_softmax.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// The keys that a thread's two rows see.
struct SeenKeys {
  int begin[2], end[2];

  // `row`: the first of the warpgroup.
  __device__ __forceinline__ SeenKeys(const IntervalMask& mask, std::int64_t row) {
    row += WarpOfGroup() * 16 + FragmentRow();
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
  const int first = key + FragmentCol();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seen.begin[r] - first;
    const int end = seen.end[r] - first;
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int col = i / 2 * 8 + i % 2;
      float& score = S[i / 2 * 4 + 2 * r + i % 2];
      score = col >= begin && col < end ? score : kMinusInf;
    }
  }
}

}  // namespace flashwok::cuda
