// The compiled instances of forward V2, by row of its table, and of the kernel that joins its pieces.
#pragma once

#include <driver_types.h>

#include <array>
#include <utility>

#include "cuda/attention/params.h"
#include "cuda/config/built.h"
#include "cuda/config/forward_v2.h"

namespace flashwok::cuda {

template <int kRow>
cudaError_t LaunchForwardV2(DType dtype, const ForwardParams& params, int multiprocessors,
                            cudaStream_t stream);

using ForwardV2Launcher = decltype(&LaunchForwardV2<0>);

// Null where the build has no instance.
template <int kRow>
constexpr ForwardV2Launcher ForwardV2LauncherOf() {
  if constexpr (BuiltHeadDim(kForwardV2Configs[kRow].head_dim)) return &LaunchForwardV2<kRow>;
  return nullptr;
}

inline constexpr auto kForwardV2Launchers = []<int... kRows>(
    std::integer_sequence<int, kRows...>) {
  return std::array{ForwardV2LauncherOf<kRows>()...};
}(std::make_integer_sequence<int, kForwardV2Rows>());

cudaError_t LaunchCombine(const ForwardParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
