#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<2>(
    DType, const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<3>(
    DType, const ForwardParams&, cudaStream_t);
