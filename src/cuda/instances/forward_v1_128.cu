#include "cuda/kernels/forward_v1.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::cuda::ForwardV1Row(128, 163)>(
    DType, const ForwardParams&, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV1<flashwok::cuda::ForwardV1Row(128, 99)>(
    DType, const ForwardParams&, cudaStream_t);
