// The compiled instances of forward V3, one file a row of its table.
#pragma once

#include <driver_types.h>

#include <array>
#include <utility>

#include "cuda/attention/forward_v3_params.h"
#include "cuda/config/built.h"
#include "cuda/config/forward_v3.h"

namespace flashwok::cuda {

using ForwardV3Launcher = cudaError_t (*)(DType, const ForwardV3Params&, int blocks, cudaStream_t);

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream);

// Null where the build has no instance.
template <int kRow>
constexpr ForwardV3Launcher ForwardV3LauncherOf() {
  if constexpr (BuiltHeadDim(kForwardV3Configs[kRow].head_dim)) return &LaunchForwardV3<kRow>;
  return nullptr;
}

inline constexpr auto kForwardV3Launchers = []<int... kRows>(
    std::integer_sequence<int, kRows...>) {
  return std::array{ForwardV3LauncherOf<kRows>()...};
}(std::make_integer_sequence<int, kForwardV3Rows>());

}  // namespace flashwok::cuda
