// The compiled instances of forward V1, by head_dim as in forward_v2.h.
#pragma once

#include <driver_types.h>

#include "cuda/attention/params.h"

namespace flashwok::cuda {

template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV1(const ForwardParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
