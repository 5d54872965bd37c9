// The compiled instances of forward V1, one file a bucket of head_dim (config/forward_v1.h).
#pragma once

#include <driver_types.h>

#include "cuda/attention/params.h"

namespace flashwok::cuda {

// kType: float16 or bfloat16; kHeadDim: 64, 128 or 256. Needs params.row_max, params.row_sum and,
// as the running O, params.partial_o: float32 [rows, head_dim_v], aligned to 16 bytes, where rows
// is batch x num_heads x total_q (varlen: num_heads x total_q). Takes no pages and no pieces.
template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV1(const ForwardParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
