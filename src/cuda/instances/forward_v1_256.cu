#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::DType::kFloat16, 256>(
    const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::DType::kBFloat16, 256>(
    const ForwardParams&, cudaStream_t);
