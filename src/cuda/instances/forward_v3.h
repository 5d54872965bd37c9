// The compiled instances of forward V3, one file a row of its table.
#pragma once

#include <driver_types.h>

#include <iterator>

#include "cuda/attention/forward_v3_params.h"
#include "cuda/config/forward_v3.h"

namespace flashwok::cuda {

using ForwardV3Launcher = cudaError_t (*)(DType, const ForwardV3Params&, int blocks, cudaStream_t);

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream);

inline constexpr ForwardV3Launcher kForwardV3Launchers[] = {
    LaunchForwardV3<0>, LaunchForwardV3<1>, LaunchForwardV3<2>, LaunchForwardV3<3>,
    LaunchForwardV3<4>, LaunchForwardV3<5>, LaunchForwardV3<6>, LaunchForwardV3<7>,
    LaunchForwardV3<8>, LaunchForwardV3<9>, LaunchForwardV3<10>, LaunchForwardV3<11>};
static_assert(std::size(kForwardV3Launchers) == kForwardV3Rows);

}  // namespace flashwok::cuda
