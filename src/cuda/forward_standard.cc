#include "cuda/instances/forward_standard.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/cublas.h"
#include "cuda/forward_params.h"
#include "cuda/kernels.h"
#include "cuda/standard_products.h"

namespace flashwok::cuda {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::int64_t kMaxRows = INT32_MAX;  // of a grid

std::size_t RoundUp(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::int64_t ScoreStride(const Layout& layout) {
  return std::max<std::int64_t>((layout.total_k + 7) / 8 * 8, 8);
}
std::int64_t Rows(const Layout& layout) { return layout.batch * layout.num_heads * layout.total_q; }
std::size_t LseBytes(const Layout& layout) {
  return RoundUp(static_cast<std::size_t>(Rows(layout)) * sizeof(float));
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
  const double scores =
      2.0 * static_cast<double>(Rows(layout)) * static_cast<double>(ScoreStride(layout));
  constexpr double kTooMuch = 0x1p62;
  if (scores > kTooMuch) return static_cast<std::size_t>(kTooMuch);
  const auto bytes =
      static_cast<std::size_t>(Rows(layout)) * 2 * static_cast<std::size_t>(ScoreStride(layout));
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
  const auto multiply = [&](const Product& product) {
    return Multiply(product, memory, launch.stream);
  };
  const StandardProducts products(layout, p);
  Status status;
  if (layout.total_k > 0) status = products.Scores(multiply);
  if (status.ok()) status = FromCuda(LaunchStandardSoftmax(dtype, p, stream), "StandardSoftmax");
  if (status.ok()) status = products.Values(multiply);
  if (!status.ok()) return status;
  return FromCuda(LaunchStandardRepair(dtype, p, stream), "StandardRepair");
}

}  // namespace flashwok::cuda
