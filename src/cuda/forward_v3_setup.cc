#include "cuda/forward_v3_setup.h"

#include <algorithm>
#include <atomic>

#include "common/tile_range.h"
#include "cuda/forward_params.h"

namespace flashwok::cuda {
namespace {

bool Varlen(const Layout& layout) { return layout.problem().cu_seqlens_q.present(); }

constexpr std::size_t kCounterBytes = 16;

// A number that is unlikely to stand in any memory, another one each time.
std::uint32_t NextLaunch() {
  static std::atomic<std::uint32_t> launches{0};
  constexpr std::uint32_t kStep = 0x9E3779B9u;  // odd: all numbers come before one returns
  std::uint32_t number = 0;
  while (number == 0) number = kStep * (launches.fetch_add(1, std::memory_order_relaxed) + 1);
  return number;
}

std::int64_t WorkTiles(const Layout& layout, const ForwardV3Config& config) {
  const int tile_q = config.tile_q();
  if (Varlen(layout)) {
    return layout.num_heads * Schedule::Slots(layout.total_q, tile_q, layout.batch);
  }
  return layout.batch * layout.num_heads * CeilDiv(layout.total_q, tile_q);
}

// What the copy engine cannot express of a tensor, or empty.
std::string MapObjection(const char* name, const Tensor& tensor) {
  if (tensor.num_elements() == 0) return {};
  if (!RowsAligned(tensor)) {
    return std::string(name) + ": its rows must start at multiples of 16 bytes";
  }
  for (int axis = 0; axis + 1 < tensor.rank; ++axis) {
    const std::int64_t bytes = tensor.strides[axis] * ItemSize(tensor.dtype);
    if (tensor.shape[axis] > 1 && (bytes == 0 || bytes >= std::int64_t{1} << 40)) {
      return std::string(name) + ": stride of axis " + std::to_string(axis) + " is " +
             std::to_string(bytes) + " bytes, must be from 16 to below 2^40";
    }
  }
  return {};
}

Status Encode(const Tensor& tensor, int rows, int cols, EncodeTensorMap encode,
              ptx::TensorMap* map) {
  const int width = cols % 64 == 0 ? 128 : 64;
  const bool batched = tensor.rank == 4;
  const int axes[4] = {tensor.rank - 1, tensor.rank - 3, tensor.rank - 2, 0};
  TensorMapRequest request;
  request.dtype = tensor.dtype;
  request.base = tensor.data;
  request.swizzle = width;
  for (int n = 0; n < 4; ++n) {
    const bool present = n < 3 || batched;
    const std::int64_t extent = present ? tensor.shape[axes[n]] : 1;
    request.sizes[n] = static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1));
    request.box[n] = 1;
    if (n == 0) continue;
    const std::int64_t bytes = extent > 1 ? tensor.strides[axes[n]] * ItemSize(tensor.dtype) : 16;
    request.strides[n - 1] = static_cast<std::uint64_t>(bytes);
  }
  request.box[0] = static_cast<std::uint32_t>(width / 2);
  request.box[1] = static_cast<std::uint32_t>(rows);
  return encode(request, map);
}

}  // namespace

std::string ForwardV3Objection(const Layout& layout) {
  const Problem& problem = layout.problem();
  if (std::string objection = CudaObjection(layout); !objection.empty()) return objection;
  const int head_dim = ForwardV3ConfigOf(layout).head_dim;
  if (std::string objection = InstanceObjection(head_dim); !objection.empty()) return objection;
  const auto unless_absent = [](const char* name, bool present) {
    return present ? std::string(name) + ": is given, must be absent" : std::string();
  };
  for (const std::string& objection :
       {unless_absent("bias", problem.bias.present()), unless_absent("mask", problem.mask.present()),
        unless_absent("alibi_slopes", problem.alibi_slopes.present()),
        unless_absent("page_table", problem.page_table.present()),
        unless_absent("dropout_p", problem.dropout_p > 0.0),
        unless_absent("num_splits", problem.num_splits > 1), MapObjection("q", problem.q),
        MapObjection("k", problem.k), MapObjection("v", problem.v)}) {
    if (!objection.empty()) return objection;
  }
  if (!(layout.softmax_scale > 0.0)) return "softmax_scale: must be above 0";
  if (WorkTiles(layout, ForwardV3ConfigOf(layout)) >= Schedule::kMaxTotal) {
    return "q: more than 2^31 work tiles";
  }
  constexpr std::int64_t kMaxRows = INT32_MAX - 512;  // the last tile's end is a 32-bit number too
  if (layout.total_q > kMaxRows) return "q: more than 2^31 - 513 rows";
  if (layout.total_k > kMaxRows) return "k: more than 2^31 - 513 rows";
  return {};
}

std::size_t ForwardV3Scratch(const Layout& layout, const ForwardV3Config& config) {
  if (!ForwardV3Hides(layout.problem())) return 0;
  const std::int64_t repairs = WorkTiles(layout, config) * config.tile_q() / 16;
  return kCounterBytes + static_cast<std::size_t>(repairs) * sizeof(RepairEntry);
}

Status MakeForwardV3Params(const Layout& layout, const ForwardV3Config& config,
                           const ForwardOutput& output, void* scratch, EncodeTensorMap encode,
                           ForwardV3Params* params) {
  const Problem& problem = layout.problem();
  const bool varlen = Varlen(layout);
  params->base = MakeForwardParams(layout, output);
  params->tile_q = config.tile_q();
  if (ForwardV3Hides(problem)) {
    params->counter = {static_cast<unsigned long long*>(scratch), NextLaunch()};
    params->repairs = reinterpret_cast<RepairEntry*>(static_cast<char*>(scratch) + kCounterBytes);
  }
  params->bulk_store =
      output.o.dtype == problem.q.dtype && MapObjection("o", output.o).empty();
  Schedule& schedule = params->schedule;
  const std::int64_t heads = varlen ? layout.num_heads : layout.batch * layout.num_heads;
  const std::int64_t tiles = WorkTiles(layout, config);
  // Tiles of one length come head by head, that many blocks read the same K and V together.
  const std::int64_t kv_bytes = layout.total_k * (layout.head_dim + layout.head_dim_v) * 2;
  const std::int64_t section = ForwardV3Hides(problem)
                                   ? Schedule::Section(heads, layout.group, kv_bytes)
                                   : std::min(layout.group, heads);
  schedule.heads = static_cast<std::uint32_t>(heads);
  schedule.per_head = static_cast<std::uint32_t>(heads > 0 ? tiles / heads : 0);
  schedule.section = static_cast<std::uint32_t>(std::max<std::int64_t>(section, 1));
  Status status = Encode(problem.q, 64, config.head_dim, encode, &params->q);
  if (status.ok()) status = Encode(problem.k, config.tile_kv, config.head_dim, encode, &params->k);
  if (status.ok()) status = Encode(problem.v, config.tile_kv, config.head_dim_v, encode, &params->v);
  if (status.ok() && params->bulk_store) {
    status = Encode(output.o, 64, config.head_dim_v, encode, &params->o);
  }
  return status;
}

}  // namespace flashwok::cuda
