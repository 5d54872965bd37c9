#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::DType::kFloat16, 64>(
    const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::DType::kBFloat16, 64>(
    const ForwardParams&, cudaStream_t);
