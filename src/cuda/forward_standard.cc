#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/cublas.h"
#include "cuda/forward_params.h"
#include "cuda/instances/forward_standard.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::int64_t kMaxRows = INT32_MAX;  // of a grid

std::size_t RoundUp(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::int64_t ScoreStride(const Layout& layout) {
  return std::max<std::int64_t>((layout.total_k + 7) / 8 * 8, 8);
}
std::int64_t Rows(const Layout& layout) {
  return layout.batch * layout.num_heads * layout.total_q;
}
std::size_t LseBytes(const Layout& layout) {
  return RoundUp(static_cast<std::size_t>(Rows(layout)) * sizeof(float));
}

// The products of the heads of one batch that share K and V, or of all when none does.
struct Heads {
  std::int64_t first, count, kv_step;
};

template <class Multiplies>
Status ForEachHeads(const Layout& layout, const Multiplies& multiplies) {
  const std::int64_t count = layout.group == 1 ? layout.num_heads : layout.group;
  Status status;
  for (std::int64_t b = 0; status.ok() && b < layout.batch; ++b) {
    for (std::int64_t h = 0; status.ok() && h < layout.num_heads; h += count) {
      status = multiplies(b, Heads{h, count, layout.group == 1 ? 1 : 0});
    }
  }
  return status;
}

}  // namespace

std::string ForwardStandardObjection(const Layout& layout) {
  const Problem& problem = layout.problem();
  if (std::string objection = CudaObjection(layout); !objection.empty()) return objection;
  if (problem.cu_seqlens_q.present()) return "cu_seqlens_q: is given, must be absent";
  if (problem.page_table.present()) return "page_table: is given, must be absent";
  if (Rows(layout) > kMaxRows) return "q: more than 2^31 - 1 rows";
  for (const auto& [name, tensor] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (tensor->shape[1] > 1 && tensor->strides[1] < tensor->shape[3]) {
      return std::string(name) + ": rows overlap";
    }
  }
  return CublasAbsence();
}

Launch PlanForwardStandard(const Layout&) { return {}; }

std::size_t ForwardStandardBytes(const Layout& layout, const Launch&) {
  const double scores = 2.0 * static_cast<double>(Rows(layout)) *
                        static_cast<double>(ScoreStride(layout));
  constexpr double kTooMuch = 0x1p62;
  if (scores > kTooMuch) return static_cast<std::size_t>(kTooMuch);
  const auto bytes = static_cast<std::size_t>(Rows(layout)) * 2 *
                     static_cast<std::size_t>(ScoreStride(layout));
  return RoundUp(bytes) + LseBytes(layout) + kCublasWorkspace;
}

Status ForwardStandard(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  if (Rows(layout) == 0) return {};
  const DType dtype = problem.q.dtype;
  auto* memory = static_cast<char*>(launch.workspace);
  ForwardStandardParams p;
  p.base = MakeForwardParams(layout, output);
  p.score_stride = ScoreStride(layout);
  p.lse = reinterpret_cast<float*>(memory + kCublasWorkspace);
  p.scores = reinterpret_cast<std::uint16_t*>(memory + kCublasWorkspace + LseBytes(layout));
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const std::int64_t q_rows = layout.total_q;
  const std::int64_t keys = layout.total_k;
  const auto scores = [&](std::int64_t b, std::int64_t h) {
    return p.scores + (b * layout.num_heads + h) * q_rows * p.score_stride;
  };
  const auto elements = [](std::int64_t bytes) { return bytes / 2; };
  Status status;
  if (keys > 0) {  // S = Q K^T
    status = ForEachHeads(layout, [&](std::int64_t b, const Heads& heads) {
      const std::int64_t kv = heads.first / layout.group;
      Product product{.transpose_b = true, .m = q_rows, .n = keys, .k = layout.head_dim};
      product.a = layout.q.Row(b, 0, heads.first);
      product.b = layout.k.Row(b, 0, kv);
      product.c = scores(b, heads.first);
      product.a_row = elements(layout.q.row_stride);
      product.b_row = elements(layout.k.row_stride);
      product.c_row = p.score_stride;
      product.a_batch = elements(layout.q.head_stride);
      product.b_batch = heads.kv_step * elements(layout.k.head_stride);
      product.c_batch = q_rows * p.score_stride;
      product.dtype = product.c_dtype = dtype;
      product.count = heads.count;
      return Multiply(product, memory, launch.stream);
    });
  }
  if (status.ok()) status = FromCuda(LaunchStandardSoftmax(dtype, p, stream), "StandardSoftmax");
  if (!status.ok()) return status;
  // O = P V; without keys a product of depth 0, which writes zeros.
  status = ForEachHeads(layout, [&](std::int64_t b, const Heads& heads) {
    const std::int64_t kv = heads.first / layout.group;
    Product product{.m = q_rows, .n = layout.head_dim_v, .k = keys};
    product.a = scores(b, heads.first);
    product.b = layout.v.Row(b, 0, kv);
    product.c = p.base.o.Row(b, 0, heads.first);
    product.a_row = p.score_stride;
    product.b_row = elements(layout.v.row_stride);
    product.c_row = p.base.o.row_stride / ItemSize(p.base.o.dtype);
    product.a_batch = q_rows * p.score_stride;
    product.b_batch = heads.kv_step * elements(layout.v.head_stride);
    product.c_batch = p.base.o.head_stride / ItemSize(p.base.o.dtype);
    product.dtype = dtype;
    product.c_dtype = p.base.o.dtype;
    product.count = heads.count;
    return Multiply(product, memory, launch.stream);
  });
  if (!status.ok()) return status;
  return FromCuda(LaunchStandardRepair(dtype, p, stream), "StandardRepair");
}

}  // namespace flashwok::cuda
