// The compiled kernels of standard attention.
#pragma once

#include <driver_types.h>

#include "cuda/attention/forward_standard_params.h"

namespace flashwok::cuda {

// S -> P; then, after the second product, rows of O that a hidden NaN came into.
cudaError_t LaunchStandardSoftmax(DType dtype, const ForwardStandardParams&, cudaStream_t);
cudaError_t LaunchStandardRepair(DType dtype, const ForwardStandardParams&, cudaStream_t);

}  // namespace flashwok::cuda
