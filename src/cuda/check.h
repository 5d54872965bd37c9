// A CUDA error as a Status.
#pragma once

#include <driver_types.h>

#include "flashwok/status.h"

namespace flashwok::cuda {

// `what`: the call or the kernel that failed.
Status FromCuda(cudaError_t error, const char* what);

}  // namespace flashwok::cuda
