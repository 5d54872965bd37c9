// Results from accumulators straight to slow memory; for their layout see lazy_softmax.cuh.
#pragma once

#include "cuda/attention/forward_v3_pipeline.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace flashwok::cuda {

// Where a thread's two rows lie.
struct RowPlace {
  std::int64_t batch;  // of the tensors
  std::int64_t head;
  std::int64_t row[2];  // in the tensors
  bool exists[2];

  // `row`: the first of the warpgroup in its sequence, of `seqlen_q` rows from `q_begin`.
  __device__ __forceinline__ RowPlace(const WorkTile& work, int q_begin, int seqlen_q, int first)
      : batch(work.batch), head(work.head) {
    for (int r = 0; r < 2; ++r) {
      const int at = first + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) +
                     8 * r;
      row[r] = std::int64_t{q_begin} + at;
      exists[r] = at < seqlen_q;
    }
  }

  __device__ __forceinline__ void StoreLse(const ForwardParams& p, int r, float lse) const {
    if (p.lse && exists[r] && threadIdx.x % 4 == 0) p.lse.At(batch, head, row[r]) = lse;
  }

  // Two neighbouring columns a store; O is in the inputs' dtype or float32, at any alignment.
  template <DType kType, int kCols>
  __device__ __forceinline__ void StoreO(const ForwardParams& p, const float (&O)[kCols / 2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists[r]) continue;
      char* out = p.o.Row(batch, row[r], head);
#pragma unroll
      for (int b = 0; b < kCols / 8; ++b) {
        const int col = 8 * b + 2 * (threadIdx.x % 4);
        if (col >= p.head_dim_v) continue;
        const float low = O[4 * b + 2 * r];
        const float high = O[4 * b + 2 * r + 1];
        if (p.o.dtype == DType::kFloat32) {
          reinterpret_cast<float*>(out)[col] = low;
          reinterpret_cast<float*>(out)[col + 1] = high;
        } else {
          const std::uint32_t pair = ptx::Pack<kType>(low, high);
          reinterpret_cast<std::uint16_t*>(out)[col] = static_cast<std::uint16_t>(pair);
          reinterpret_cast<std::uint16_t*>(out)[col + 1] = static_cast<std::uint16_t>(pair >> 16);
        }
      }
    }
  }
};

}  // namespace flashwok::cuda
