#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<7>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<8>(
    DType, const ForwardParams&, int, cudaStream_t);
