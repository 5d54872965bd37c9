#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<0>(
    DType, const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<1>(
    DType, const ForwardParams&, cudaStream_t);
