#include <cuda_runtime_api.h>

#include <algorithm>

#include "common/tile_range.h"
#include "cuda/check.h"
#include "cuda/config/forward_v3.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/instances/forward_v3.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {
namespace {

int Row(const Layout& layout) { return ForwardV3Row(layout.head_dim, layout.head_dim_v); }

// Tiles of unlike length are handed out one by one.
bool Uneven(const Problem& problem) {
  return problem.causal != Causal::kNone || problem.window_left >= 0 ||
         problem.window_right >= 0 || problem.cu_seqlens_q.present() ||
         problem.seqused_k.present();
}

int Multiprocessors() {
  int device = 0;
  int count = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace

Launch PlanForwardV3(const Layout& layout) {
  const ForwardV3Config& config = kForwardV3Configs[Row(layout)];
  Launch launch;
  launch.tile_q = config.tile_q();
  launch.tile_kv = config.tile_kv;
  return launch;
}

std::size_t ForwardV3Bytes(const Layout& layout, const Launch&) {
  return Uneven(layout.problem()) ? sizeof(unsigned) : 0;
}

Status ForwardV3(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  ForwardV3Params params;
  Status status = MakeForwardV3Params(layout, output, EncodeWithDriver, &params);
  if (!status.ok() || params.schedule.total() == 0) return status;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const auto blocks = static_cast<int>(
      std::min(params.schedule.total(), static_cast<std::uint32_t>(Multiprocessors())));
  if (Uneven(problem)) {
    params.counter = static_cast<unsigned*>(launch.workspace);
    status = FromCuda(cudaMemsetAsync(params.counter, 0, sizeof(unsigned), stream), "cudaMemset");
    if (!status.ok()) return status;
  }
  return FromCuda(kForwardV3Launchers[Row(layout)](problem.q.dtype, params, blocks, stream),
                  "cuda_forward_v3");
}

}  // namespace flashwok::cuda
