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
  float4* o;  // of the sequence's first row

  __device__ static HeadV1 Find(const ForwardParams& params) {
    HeadV1 here;
    here.batch = blockIdx.x / params.num_heads;
    here.head = blockIdx.x % params.num_heads;
    here.head_kv = here.head / params.group;
    here.sequence = params.At(here.batch);
    const bool varlen = static_cast<bool>(params.cu_seqlens_q);
    const std::int64_t tiles = ForwardV1Tiles(params.total_q, kTileQ, varlen ? params.batch : 0);
    const std::int64_t before = varlen
                                    ? here.head * tiles + here.sequence.q_begin / kTileQ + here.batch
                                    : blockIdx.x * tiles;
    here.o = reinterpret_cast<float4*>(params.partial_o) + before * (kTileQ * kHeadDim / 4);
    return here;
  }
  // Of this lane: rows [i, i + 16), columns [col, col + 8); i is a multiple of 16, col of 8.
  __device__ __forceinline__ float4* O(std::int64_t i, int col) const {
    return o + (i / 16 * (kHeadDim / 8) + col / 8) * 32 + threadIdx.x % 32;
  }
  __device__ std::int64_t Chunks() const {  // of four floats of O
    return (sequence.seqlen_q + kTileQ - 1) / kTileQ * (kTileQ * kHeadDim / 4);
  }
  __device__ float& RowMax(const ForwardParams& params, std::int64_t i) const {  // log2
    return params.row_max.At(batch, head, sequence.q_begin + i);
  }
  __device__ float& RowSum(const ForwardParams& params, std::int64_t i) const {
    return params.row_sum.At(batch, head, sequence.q_begin + i);
  }
};

}  // namespace flashwok::cuda
