#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<9>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<10>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<11>(
    DType, const ForwardParams&, int, cudaStream_t);
