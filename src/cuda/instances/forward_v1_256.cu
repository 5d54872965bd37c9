#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<4>(
    DType, const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<5>(
    DType, const ForwardParams&, cudaStream_t);
