// The compiled instances of forward V2, one file a bucket of head_dim (config/forward_v2.h), and
// the kernel that joins the pieces of a split.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "cuda/attention/params.h"

namespace flashwok::cuda {

// kType: float16 or bfloat16; kHeadDim: 32, 64, 96, 128, 192 or 256. With params.num_splits > 1,
// whose params.chunk is a multiple of tile_kv, LaunchCombine is to follow.
template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream);

// Reads params.partial_o and params.partial_lse, writes params.o and params.lse.
cudaError_t LaunchCombine(const ForwardParams& params, cudaStream_t stream);

// Of params.partial_o, float32 [num_splits, rows, head_dim_v], and after it params.partial_lse.
std::size_t PartialBytes(const ForwardParams& params);

}  // namespace flashwok::cuda
