// The compiled instances of forward V1, by row of its table.
#pragma once

#include <driver_types.h>

#include <array>
#include <utility>

#include "cuda/attention/params.h"
#include "cuda/config/built.h"
#include "cuda/config/forward_v1.h"

namespace flashwok::cuda {

template <int kRow>
cudaError_t LaunchForwardV1(DType dtype, const ForwardParams& params, cudaStream_t stream);

using ForwardV1Launcher = decltype(&LaunchForwardV1<0>);

// Null where the build has no instance.
template <int kRow>
constexpr ForwardV1Launcher ForwardV1LauncherOf() {
  if constexpr (BuiltHeadDim(kForwardV1Configs[kRow].head_dim)) return &LaunchForwardV1<kRow>;
  return nullptr;
}

inline constexpr auto kForwardV1Launchers = []<int... kRows>(
    std::integer_sequence<int, kRows...>) {
  return std::array{ForwardV1LauncherOf<kRows>()...};
}(std::make_integer_sequence<int, kForwardV1Rows>());

}  // namespace flashwok::cuda
