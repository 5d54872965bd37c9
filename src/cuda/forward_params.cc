#include "cuda/forward_params.h"

#include <string>

#include "cuda/config/built.h"

namespace flashwok::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634074;

IntView MakeIntView(const Tensor& tensor) {
  if (!tensor.present()) return {};
  return {static_cast<const std::int32_t*>(tensor.data), tensor.strides[tensor.rank - 1]};
}

}  // namespace

bool RowsAligned(const Tensor& tensor) {
  constexpr std::int64_t kBytes = 16;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % kBytes != 0) return false;
  for (int axis = 0; axis + 1 < tensor.rank; ++axis) {
    const bool used = tensor.shape[axis] > 1;
    if (used && tensor.strides[axis] * ItemSize(tensor.dtype) % kBytes != 0) return false;
  }
  return true;
}

ForwardParams MakeForwardParams(const Layout& layout, const ForwardOutput& output) {
  const Problem& problem = layout.problem();
  ForwardParams p;
  p.q = layout.q;
  p.k = layout.k;
  p.v = layout.v;
  p.o = RowView::Make(output.o);
  p.lse = ScalarView::Make(output.lse);
  p.row_max = ScalarView::Make(output.row_max);
  p.row_sum = ScalarView::Make(output.row_sum);
  p.bias = layout.bias;
  p.mask = layout.mask;
  p.cu_seqlens_q = MakeIntView(problem.cu_seqlens_q);
  p.cu_seqlens_k = MakeIntView(problem.cu_seqlens_k);
  p.seqused_k = MakeIntView(problem.seqused_k);
  p.page_table = MakeIntView(problem.page_table);
  if (layout.page_size > 0) {
    p.page_batch_stride = problem.page_table.strides[0];
    p.page_size = layout.page_size;
    p.num_pages = problem.k.shape[0];
  }
  if (const Tensor& slopes = problem.alibi_slopes; slopes.present()) {
    p.alibi_slopes = static_cast<const float*>(slopes.data);
    p.alibi_batch_stride = slopes.rank == 2 ? slopes.strides[0] : 0;
    p.alibi_head_stride = slopes.strides[slopes.rank - 1];
  }
  p.batch = layout.batch;
  p.num_heads = layout.num_heads;
  p.group = layout.group;
  p.head_dim = layout.head_dim;
  p.head_dim_v = layout.head_dim_v;
  p.total_q = layout.total_q;
  p.total_k = layout.page_size > 0 ? layout.page_size * problem.page_table.shape[1] : layout.total_k;
  p.causal = problem.causal;
  p.window_left = problem.window_left;
  p.window_right = problem.window_right;
  const double scale = layout.softmax_scale;
  p.score_factor =
      static_cast<float>(layout.softcap > 0.0 ? scale / layout.softcap : scale * kLog2E);
  p.softcap_log2 = static_cast<float>(layout.softcap * kLog2E);
  p.dropout = layout.dropout;
  p.aligned = RowsAligned(problem.q) && RowsAligned(problem.k) && RowsAligned(problem.v) &&
              RowsAligned(output.o);
  return p;
}

std::string CudaObjection(const Layout& layout) {
  for (const auto& [name, value] : {std::pair{"head_dim", layout.head_dim},
                                    std::pair{"head_dim_v", layout.head_dim_v}}) {
    if (value % 8 != 0) {
      return std::string(name) + ": is " + std::to_string(value) +
             ", must be a multiple of 8 on a CUDA device";
    }
  }
  return {};
}

std::string InstanceObjection(int head_dim) {
  if (BuiltHeadDim(head_dim)) return {};
  return std::string("head_dim: this build lacks the instance of ") + std::to_string(head_dim) +
         ", see FLASHWOK_CUDA_HEAD_DIMS";
}

}  // namespace flashwok::cuda
