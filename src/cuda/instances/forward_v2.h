// The compiled instances of forward V2 and of the kernel that joins its pieces, by head_dim: the
// larger of head_dim and head_dim_v, rounded up to the next of kForwardV2Configs.
#pragma once

#include <driver_types.h>

#include "cuda/attention/params.h"

namespace flashwok::cuda {

template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream);

cudaError_t LaunchCombine(const ForwardParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
