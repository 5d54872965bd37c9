#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/instances/forward_v3.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {

Launch PlanForwardV3(const Layout& layout) {
  const ForwardV3Config config = ForwardV3ConfigOf(layout);
  Launch launch;
  launch.tile_q = config.tile_q();
  launch.tile_kv = config.tile_kv;
  return launch;
}

std::size_t ForwardV3Bytes(const Layout& layout, const Launch&) {
  return ForwardV3Scratch(layout, ForwardV3ConfigOf(layout));
}

Status ForwardV3(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  ForwardV3Params params;
  Status status =
      MakeForwardV3Params(layout, ForwardV3ConfigOf(layout), output, launch.workspace,
                          EncodeWithDriver, &params);
  if (!status.ok() || params.schedule.total() == 0) return status;
  params.stamps = launch.stamps;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const auto most = static_cast<std::uint32_t>(Multiprocessors(problem.q.device.index));
  const auto blocks = static_cast<int>(std::min(params.schedule.total(), most));
  return FromCuda(kForwardV3Launchers[ForwardV3RowOf(layout)](problem.q.dtype, params, blocks, stream),
                  "cuda_forward_v3");
}

}  // namespace flashwok::cuda
