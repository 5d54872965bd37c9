// The head that a thread block of V1 owns, and what slow memory holds of it between two KV tiles:
// O, m and l of every row.
#pragma once

#include <cstdint>

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/params.h"

namespace flashwok::cuda {

struct HeadV1 {
  std::int64_t batch, head, head_kv;
  Sequence sequence;

  __device__ static HeadV1 Find(const ForwardParams& params) {
    HeadV1 here;
    here.batch = blockIdx.x / params.num_heads;
    here.head = blockIdx.x % params.num_heads;
    here.head_kv = here.head / params.group;
    here.sequence = params.At(here.batch);
    return here;
  }
  __device__ float* O(const ForwardParams& params, std::int64_t i) const {
    return params.partial_o +
           PartialRow(params, sequence.q_begin, batch, head, i) * params.head_dim_v;
  }
  __device__ float& RowMax(const ForwardParams& params, std::int64_t i) const {  // log2
    return params.row_max.At(batch, head, sequence.q_begin + i);
  }
  __device__ float& RowSum(const ForwardParams& params, std::int64_t i) const {
    return params.row_sum.At(batch, head, sequence.q_begin + i);
  }
};

}  // namespace flashwok::cuda
