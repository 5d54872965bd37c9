#include <cuda_runtime_api.h>

#include <algorithm>

#include "common/tile_range.h"
#include "cuda/check.h"
#include "cuda/config/forward_v2.h"
#include "cuda/device.h"
#include "cuda/forward_params.h"
#include "cuda/instances/forward_v2.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {
namespace {

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 31;
constexpr int kMaxPieces = 256;

// Keys of a piece when nobody says how many there shall be. The pieces of a row do not depend on
// which others are in the call.
constexpr std::int64_t kPiece = 1024;

int Row(const Layout& layout) {
  return ForwardV2Row(std::max(layout.head_dim, layout.head_dim_v),
                      SharedKib(layout.problem().q.device.index));
}

ForwardV2Config Config(const Layout& layout) { return kForwardV2Configs[Row(layout)]; }

std::int64_t Blocks(const Layout& layout, int tile_q) {
  const bool varlen = layout.problem().cu_seqlens_q.present();
  const std::int64_t tiles = varlen ? layout.total_q / tile_q + layout.batch
                                    : CeilDiv(layout.total_q, tile_q) * layout.batch;
  return tiles * layout.num_heads;
}

}  // namespace

std::string ForwardV2Objection(const Layout& layout) {
  if (std::string objection = CudaObjection(layout); !objection.empty()) return objection;
  if (std::string objection = InstanceObjection(Config(layout).head_dim); !objection.empty()) {
    return objection;
  }
  const std::int64_t pieces = PlanForwardV2(layout).num_splits;
  if (Blocks(layout, Config(layout).tile_q) * pieces >= kMaxBlocks) {
    return "q: more than 2^31 thread blocks";
  }
  return {};
}

Launch PlanForwardV2(const Layout& layout) {
  const ForwardV2Config config = Config(layout);
  Launch launch;
  launch.tile_q = config.tile_q;
  launch.tile_kv = config.tile_kv;
  const std::int64_t keys = layout.page_size > 0
                                ? layout.page_size * layout.problem().page_table.shape[1]
                                : layout.total_k;
  const int wanted = layout.problem().num_splits;
  const bool few_rows = !layout.problem().cu_seqlens_q.present() && layout.total_q <= config.tile_q;
  std::int64_t piece = keys;
  if (wanted > 1) {
    piece = CeilDiv(keys, wanted);
  } else if (wanted == 0 && few_rows) {
    piece = std::max(kPiece, CeilDiv(keys, kMaxPieces));
  }
  launch.chunk = std::max<std::int64_t>(CeilDiv(piece, config.tile_kv), 1) * config.tile_kv;
  launch.num_splits = static_cast<int>(std::max<std::int64_t>(CeilDiv(keys, launch.chunk), 1));
  return launch;
}

std::size_t ForwardV2Bytes(const Layout& layout, const Launch& launch) {
  if (launch.num_splits == 1) return 0;
  const std::int64_t batch = layout.problem().cu_seqlens_q.present() ? 1 : layout.batch;
  const std::int64_t rows = batch * layout.num_heads * layout.total_q;
  return static_cast<std::size_t>(launch.num_splits * rows * (layout.head_dim_v + 1)) *
         sizeof(float);
}

Status ForwardV2(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  ForwardParams params = MakeForwardParams(layout, output);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  params.num_splits = launch.num_splits;
  params.chunk = launch.chunk;
  if (launch.num_splits > 1) {
    params.partial_o = static_cast<float*>(launch.workspace);
    params.partial_lse =
        params.partial_o + launch.num_splits * params.rows() * params.head_dim_v;
  }
  const auto launcher = kForwardV2Launchers[static_cast<std::size_t>(Row(layout))];
  Status status = FromCuda(
      launcher(problem.q.dtype, params, Multiprocessors(problem.q.device.index), stream),
      "cuda_forward_v2");
  if (status.ok() && launch.num_splits > 1) {
    status = FromCuda(LaunchCombine(params, stream), "cuda_forward_v2, combine");
  }
  return status;
}

}  // namespace flashwok::cuda
