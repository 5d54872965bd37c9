// The one call into the CUDA driver, found at run time so that the library loads without one.
#pragma once

#include "cuda/forward_v3_setup.h"

namespace flashwok::cuda {

// cuTensorMapEncodeTiled, by cudaGetDriverEntryPoint.
Status EncodeWithDriver(const TensorMapRequest& request, ptx::TensorMap* map);

}  // namespace flashwok::cuda
