// Starts forward V3: a thread block for each SM, the row of its table by number.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/config/built.h"
#include "cuda/kernels/forward_v3.cuh"

namespace flashwok::cuda {

template <class Traits>
cudaError_t StartForwardV3(const ForwardV3Params& params, int blocks, cudaStream_t stream) {
  constexpr int kShared = sizeof(ForwardV3Storage<Traits>);
  const cudaError_t error = cudaFuncSetAttribute(
      ForwardV3<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  ForwardV3<Traits><<<blocks, Traits::kThreads, kShared, stream>>>(params);
  return cudaGetLastError();
}

template <DType kType, ForwardV3Config kConfig>
cudaError_t StartForwardV3(const ForwardV3Params& params, int blocks, cudaStream_t stream) {
  using Plain = AsBuilt<ForwardV3Traits<kType, kConfig, false>>;
  using Capped = AsBuilt<ForwardV3Traits<kType, WithSoftcap(kConfig), true>>;
  return params.base.softcap_log2 != 0.0f ? StartForwardV3<Capped>(params, blocks, stream)
                                          : StartForwardV3<Plain>(params, blocks, stream);
}

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream) {
  constexpr ForwardV3Config kConfig = kForwardV3Configs[kRow];
  return VisitDType(
      dtype, [&]<DType kType>() { return StartForwardV3<kType, kConfig>(params, blocks, stream); });
}

}  // namespace flashwok::cuda
