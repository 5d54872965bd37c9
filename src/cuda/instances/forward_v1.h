// The compiled instances of forward V1, by row of its table.
#pragma once

#include <driver_types.h>

#include <array>
#include <utility>

#include "cuda/attention/params.h"
#include "cuda/config/forward_v1.h"

namespace flashwok::cuda {

template <int kRow>
cudaError_t LaunchForwardV1(DType dtype, const ForwardParams& params, cudaStream_t stream);

inline constexpr auto kForwardV1Launchers = []<int... kRows>(
    std::integer_sequence<int, kRows...>) {
  return std::array{&LaunchForwardV1<kRows>...};
}(std::make_integer_sequence<int, kForwardV1Rows>());

}  // namespace flashwok::cuda
