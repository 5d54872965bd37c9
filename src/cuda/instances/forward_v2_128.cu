#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<4>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<5>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<6>(
    DType, const ForwardParams&, int, cudaStream_t);
