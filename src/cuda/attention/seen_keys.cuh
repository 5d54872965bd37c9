// The interval mask of V3's accumulators, from what the plan says of their rows.
#pragma once

#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/work_plan.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Scores of the keys that a row does not see become -inf, whatever they were; column 0 is `key`, of
// `keys` in the sequence. Each end is looked at only where it can lie in these columns.
template <int kCols>
__device__ __forceinline__ void HideOutside(float (&S)[kCols / 2], const RowsPlan& rows, int keys,
                                            int key) {
  const int row = WarpOfGroup() * 16 + FragmentRow();
  const int first = key + FragmentCol();
  const int end = min(rows.seen_end, keys);
  if (end - key < kCols) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int limit = min(rows.seen_end + row + 8 * r, keys) - first;
#pragma unroll
      for (int i = 0; i < kCols / 4; ++i) {
        float& score = S[i / 2 * 4 + 2 * r + i % 2];
        score = i / 2 * 8 + i % 2 < limit ? score : kMinusInf;
      }
    }
  }
  if (rows.seen_begin + 63 > key) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int limit = rows.seen_begin + row + 8 * r - first;
#pragma unroll
      for (int i = 0; i < kCols / 4; ++i) {
        float& score = S[i / 2 * 4 + 2 * r + i % 2];
        score = i / 2 * 8 + i % 2 >= limit ? score : kMinusInf;
      }
    }
  }
}

}  // namespace flashwok::cuda
