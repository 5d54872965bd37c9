#include "cuda/config/forward_v1.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/forward_params.h"
#include "cuda/instances/forward_v1.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {
namespace {

int Row(const Layout& layout) {
  return ForwardV1Row(std::max(layout.head_dim, layout.head_dim_v),
                      SharedKib(layout.problem().q.device.index));
}

ForwardV1Config Config(const Layout& layout) { return kForwardV1Configs[Row(layout)]; }

bool Varlen(const Layout& layout) { return layout.problem().cu_seqlens_q.present(); }

std::int64_t Heads(const Layout& layout) {
  return (Varlen(layout) ? 1 : layout.batch) * layout.num_heads;
}

std::int64_t Rows(const Layout& layout) { return Heads(layout) * layout.total_q; }

std::int64_t RunningFloats(const Layout& layout) {
  const ForwardV1Config config = Config(layout);
  return Heads(layout) * config.tile_q * config.head_dim *
         ForwardV1Tiles(layout.total_q, config.tile_q, Varlen(layout) ? layout.batch : 0);
}

}  // namespace

std::string ForwardV1Objection(const Layout& layout) {
  if (std::string objection = CudaObjection(layout); !objection.empty()) return objection;
  if (std::string objection = InstanceObjection(Config(layout).head_dim); !objection.empty()) {
    return objection;
  }
  if (layout.problem().page_table.present()) return "page_table: is given, must be absent";
  return {};
}

Launch PlanForwardV1(const Layout& layout) {
  const ForwardV1Config config = Config(layout);
  Launch launch;
  launch.tile_q = config.tile_q;
  launch.tile_kv = config.tile_kv;
  return launch;
}

// The running O, m and l.
std::size_t ForwardV1Bytes(const Layout& layout, const Launch&) {
  return static_cast<std::size_t>(RunningFloats(layout) + 2 * Rows(layout)) * sizeof(float);
}

Status ForwardV1(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  ForwardParams params = MakeForwardParams(layout, output);
  params.partial_o = static_cast<float*>(launch.workspace);
  if (!output.row_max.present()) {
    float* row_max = params.partial_o + RunningFloats(layout);
    const std::int64_t batch_stride = Varlen(layout) ? 0 : params.num_heads * params.total_q;
    params.row_max = {row_max, batch_stride, params.total_q, 1};
    params.row_sum = params.row_max;
    params.row_sum.data = row_max + Rows(layout);
  }
  const auto launcher = kForwardV1Launchers[static_cast<std::size_t>(Row(layout))];
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  return FromCuda(launcher(problem.q.dtype, params, stream), "cuda_forward_v1");
}

}  // namespace flashwok::cuda
