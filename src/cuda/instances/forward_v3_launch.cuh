// Forward V3 of one row of its table, by dtype and softcap. For the file of that row alone:
// forward_v3.h, which names every row, would compile them all here.
#pragma once

#include "cuda/config/time_stamps.h"
#include "cuda/kernels/forward_v3.cuh"

namespace flashwok::cuda {

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream) {
  constexpr DType kBf16 = DType::kBFloat16;
  constexpr DType kHalf = DType::kFloat16;
  constexpr ForwardV3Config kConfig = kForwardV3Configs[kRow];
  constexpr ForwardV3Config kCapped = WithSoftcap(kConfig);
  const auto start = [&](auto traits) {
    return StartForwardV3<AsBuilt<decltype(traits)>>(params, blocks, stream);
  };
  const bool softcap = params.base.softcap_log2 != 0.0f;
  if (dtype == kBf16) {
    return softcap ? start(ForwardV3Traits<kBf16, kCapped, true>())
                   : start(ForwardV3Traits<kBf16, kConfig, false>());
  }
  return softcap ? start(ForwardV3Traits<kHalf, kCapped, true>())
                 : start(ForwardV3Traits<kHalf, kConfig, false>());
}

}  // namespace flashwok::cuda
