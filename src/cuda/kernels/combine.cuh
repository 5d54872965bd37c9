// The second half of split-KV (Dao 2023, section 3.3; FlashDecoding): joins the partial results of
// the pieces of a row's keys, in the order of the keys, by the algebra of softmax_state.h. A warp
// owns a row; a piece without keys (lse = -inf) is left out, and its O is not read.
#pragma once

#include <cstdint>

#include "common/softmax_state.h"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/params.h"

namespace flashwok::cuda {

struct Combine {
  static constexpr int kWarps = 4;
  static constexpr int kMaxColumns = 256 / 32;  // of O, a lane

  // Where a row of the partial results lies; batch is 0 in varlen, whose rows count through.
  struct Row {
    std::int64_t batch, head, i;
    bool exists;
  };
  __device__ static Row Find(const ForwardParams& params, std::int64_t index) {
    const std::int64_t head = index / params.total_q;
    const std::int64_t i = index % params.total_q;
    if (!params.cu_seqlens_q) return {head / params.num_heads, head % params.num_heads, i, true};
    const std::int64_t begin = params.cu_seqlens_q.At(0, 0, params.total_q);
    const std::int64_t end = params.cu_seqlens_q.At(params.batch, 0, params.total_q);
    return {0, head, i, begin <= i && i < end};
  }

  __device__ static void Store(const ForwardParams& params, const Row& row,
                               const float (&O)[kMaxColumns]) {
    char* target = params.o.Row(row.batch, row.i, row.head);
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int col = c * 32 + LaneIndex();
      if (col < params.head_dim_v) StoreElement(target, params.o.dtype, col, O[c]);
    }
  }

  __device__ static void Run(const ForwardParams& params) {
    const std::int64_t rows = params.rows();
    const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + WarpIndex();
    if (index >= rows) return;
    const Row row = Find(params, index);
    if (!row.exists) return;
    float O[kMaxColumns] = {};
    float lse = kMinusInf;
    for (int s = 0; s < params.num_splits; ++s) {
      const float part = params.partial_lse[s * rows + index];
      if (part == kMinusInf) continue;
      const MergeWeights weights = Merge(lse, part);
      const float* partial_o = params.partial_o + (s * rows + index) * params.head_dim_v;
#pragma unroll
      for (int c = 0; c < kMaxColumns; ++c) {
        const int col = c * 32 + LaneIndex();
        if (col < params.head_dim_v) O[c] = weights.Join(O[c], partial_o[col]);
      }
      lse = weights.lse;
    }
    Store(params, row, O);
    if (params.lse && LaneIndex() == 0) params.lse.At(row.batch, row.head, row.i) = lse;
  }
};

#ifdef __CUDACC__

__global__ void __launch_bounds__(Combine::kWarps * 32)
    CombineKernel(const __grid_constant__ ForwardParams params) {
  Combine::Run(params);
}

cudaError_t LaunchCombine(const ForwardParams& params, cudaStream_t stream) {
  const std::int64_t blocks = (params.rows() + Combine::kWarps - 1) / Combine::kWarps;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  ForwardParams copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&CombineKernel),
                          dim3(static_cast<unsigned>(blocks)), dim3(Combine::kWarps * 32),
                          arguments, 0, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
