#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<1>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<2>(
    DType, const ForwardParams&, int, cudaStream_t);
