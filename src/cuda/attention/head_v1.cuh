// The head that a thread block of V1 owns, and what slow memory holds of it between two KV tiles:
// O, m and l of every row. O lies as the warps hold it, [16 rows][8 columns][lane] of four floats:
// a warp reads and writes 512 bytes in a row.
#pragma once

#include <cstdint>

#include "cuda/attention/params.h"
#include "cuda/config/forward_v1.h"

namespace flashwok::cuda {

template <int kHeadDim, int kTileQ>
struct HeadV1 {
  std::int64_t batch, head, head_kv;
  Sequence sequence;
  std::int64_t o, row_max, row_sum;  // of the sequence's first row, from the start of the three

  __device__ static HeadV1 Find(const ForwardParams& params) {
    HeadV1 here;
    here.batch = blockIdx.x / params.num_heads;
    here.head = blockIdx.x % params.num_heads;
    here.head_kv = here.head / params.group;
    here.sequence = params.At(here.batch);
    const bool varlen = static_cast<bool>(params.cu_seqlens_q);
    const std::int64_t tiles = ForwardV1Tiles(params.total_q, kTileQ, varlen ? params.batch : 0);
    const std::int64_t before =
        varlen ? here.head * tiles + here.sequence.q_begin / kTileQ + here.batch
               : blockIdx.x * tiles;
    here.o = before * (kTileQ * kHeadDim / 4);
    here.row_max = here.First(params.row_max);
    here.row_sum = here.First(params.row_sum);
    return here;
  }
  // Rows [i, i + 16) of O; i is a multiple of 16.
  __device__ __forceinline__ float4* Block(const ForwardParams& params, std::int64_t i) const {
    return reinterpret_cast<float4*>(params.partial_o) + o + i * (kHeadDim / 4);
  }
  // Of them this lane's part of columns [col, col + 8); col is a multiple of 8.
  __device__ __forceinline__ float4* O(const ForwardParams& params, std::int64_t i, int col) const {
    return Block(params, i) + col * 4 + threadIdx.x % 32;
  }
  __device__ std::int64_t Chunks() const {  // of four floats of O
    return (sequence.seqlen_q + kTileQ - 1) / kTileQ * (kTileQ * kHeadDim / 4);
  }
  __device__ __forceinline__ float& RowMax(const ForwardParams& params,
                                           std::int64_t i) const {  // log2
    return params.row_max.data[row_max + i * params.row_max.row_stride];
  }
  __device__ __forceinline__ float& RowSum(const ForwardParams& params, std::int64_t i) const {
    return params.row_sum.data[row_sum + i * params.row_sum.row_stride];
  }

 private:
  __device__ std::int64_t First(const ScalarView& view) const {
    return &view.At(batch, head, sequence.q_begin) - view.data;
  }
};

}  // namespace flashwok::cuda
