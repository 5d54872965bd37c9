#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<flashwok::DType::kFloat16, 192>(
    const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<flashwok::DType::kBFloat16, 192>(
    const ForwardParams&, cudaStream_t);
