#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<3>(
    DType, const ForwardParams&, int, cudaStream_t);
