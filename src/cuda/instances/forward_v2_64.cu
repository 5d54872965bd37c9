#include "cuda/kernels/forward_v2.cuh"

template cudaError_t flashwok::cuda::LaunchForwardV2<flashwok::cuda::ForwardV2Row(64, 227)>(
    DType, const ForwardParams&, int, cudaStream_t);
template cudaError_t flashwok::cuda::LaunchForwardV2<flashwok::cuda::ForwardV2Row(64, 99)>(
    DType, const ForwardParams&, int, cudaStream_t);
