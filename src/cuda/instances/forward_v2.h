// The compiled instances of forward V2, by row of its table, and of the kernel that joins its pieces.
#pragma once

#include <driver_types.h>

#include <array>
#include <utility>

#include "cuda/attention/params.h"
#include "cuda/config/forward_v2.h"

namespace flashwok::cuda {

template <int kRow>
cudaError_t LaunchForwardV2(DType dtype, const ForwardParams& params, int multiprocessors,
                            cudaStream_t stream);

inline constexpr auto kForwardV2Launchers = []<int... kRows>(
    std::integer_sequence<int, kRows...>) {
  return std::array{&LaunchForwardV2<kRows>...};
}(std::make_integer_sequence<int, kForwardV2Rows>());

cudaError_t LaunchCombine(const ForwardParams& params, cudaStream_t stream);

}  // namespace flashwok::cuda
