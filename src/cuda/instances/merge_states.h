// The compiled kernel that joins partial results.
#pragma once

#include <driver_types.h>

#include "cuda/attention/merge_params.h"

namespace flashwok::cuda {

cudaError_t LaunchMergeStates(const MergeParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
