#include "cuda/kernels/forward_v3_launch.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV3<4>(
    DType, const ForwardV3Params&, int, cudaStream_t);
