#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<0>(
    DType, const ForwardParams&, int, cudaStream_t);
