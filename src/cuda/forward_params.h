// From a validated Problem to what the CUDA forward kernels take. Host code without CUDA.
#pragma once

#include "cuda/attention/params.h"

namespace flashwok::cuda {

// Everything but the split and the scratch. lse, row_max and row_sum may be absent.
ForwardParams MakeForwardParams(const Layout& layout, const ForwardOutput& output);

// Whether every row of the tensor starts at a multiple of 16 bytes.
bool RowsAligned(const Tensor& tensor);

// Why no CUDA kernel takes the problem, or empty.
std::string CudaObjection(const Layout& layout);

// Why an instance of this head_dim does not run, or empty: the build may lack it.
std::string InstanceObjection(int head_dim);

}  // namespace flashwok::cuda
