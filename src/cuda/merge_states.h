// MergeStates on a CUDA device, of tensors that ValidateMerge has accepted.
#pragma once

#include "cuda/attention/merge_params.h"
#include "flashwok/status.h"
#include "flashwok/tensor.h"

namespace flashwok::cuda {

// Host code without CUDA.
MergeParams MakeMergeParams(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                            const Tensor& lse_b, const Tensor& o, const Tensor& lse);

// On the device that is current, in the stream's order.
Status MergeStates(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                   const Tensor& o, const Tensor& lse, void* stream);

}  // namespace flashwok::cuda
