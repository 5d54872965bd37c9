// A validated Problem in the form that kernels read: rows by (batch, row, head), lengths by batch,
// and the score options with their defaults resolved.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/dtype.h"
#include "common/mask.h"
#include "common/philox.h"
#include "flashwok/attention.h"

namespace flashwok {

// Whether the host may look at the elements.
inline bool Readable(const Tensor& tensor) {
  return tensor.data != nullptr && tensor.device.type == DeviceType::kCpu;
}

// Rows of a tensor [batch, seqlen, num_heads, n] or, with batch_stride 0, [total, num_heads, n].
struct RowView {
  char* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t batch_stride = 0;  // strides in bytes
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  static RowView Make(const Tensor& tensor) {
    const std::int64_t item = ItemSize(tensor.dtype);
    const int axis = tensor.rank - 3;  // the seqlen axis
    return {static_cast<char*>(tensor.data), tensor.dtype,
            tensor.rank == 4 ? tensor.strides[0] * item : 0, tensor.strides[axis] * item,
            tensor.strides[axis + 1] * item};
  }
  FLASHWOK_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  FLASHWOK_HOST_DEVICE char* Row(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return data + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

// One float a row: lse, D, row_max. [batch, num_heads, seqlen] or varlen [num_heads, total].
struct ScalarView {
  float* data = nullptr;
  std::int64_t batch_stride = 0;  // in elements
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  static ScalarView Make(const Tensor& tensor) {
    if (!tensor.present()) return {};
    return {static_cast<float*>(tensor.data), tensor.rank == 3 ? tensor.strides[0] : 0,
            tensor.strides[tensor.rank - 2], tensor.strides[tensor.rank - 1]};
  }
  FLASHWOK_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  FLASHWOK_HOST_DEVICE float& At(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_stride + head * head_stride + row * row_stride];
  }
};

// Bias or mask [batch|1, num_heads|1, seqlen_q|1, seqlen_k]; an axis of 1 has stride 0 here.
struct ScoreView {
  char* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t strides[3] = {0, 0, 0};  // batch, head, row; in elements

  static ScoreView Make(const Tensor& tensor) {
    ScoreView view;
    if (!tensor.present()) return view;
    view.data = static_cast<char*>(tensor.data);
    view.dtype = tensor.dtype;
    for (int axis = 0; axis < 3; ++axis) {
      view.strides[axis] = tensor.shape[axis] == 1 ? 0 : tensor.strides[axis];
    }
    return view;
  }
  FLASHWOK_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  FLASHWOK_HOST_DEVICE std::int64_t Offset(std::int64_t batch, std::int64_t head,
                                           std::int64_t row) const {
    return batch * strides[0] + head * strides[1] + row * strides[2];
  }
  const char* At(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t j) const {
    return data + (Offset(batch, head, row) + j) * ItemSize(dtype);
  }
};

struct Sequence {
  std::int64_t q_begin = 0;  // first row in the tensors (varlen), else 0
  std::int64_t k_begin = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  IntervalMask mask;
};

class Layout {
 public:
  explicit Layout(const Problem& problem) : problem_(problem) {
    const Tensor& query = problem.q;
    const bool varlen = problem.cu_seqlens_q.present();
    const bool paged = problem.page_table.present();
    batch = varlen ? problem.cu_seqlens_q.shape[0] - 1 : query.shape[0];
    num_heads = query.shape[query.rank - 2];
    num_heads_kv = problem.k.shape[problem.k.rank - 2];
    group = num_heads / num_heads_kv;
    head_dim = query.shape[query.rank - 1];
    head_dim_v = problem.v.shape[problem.v.rank - 1];
    total_q = query.shape[query.rank - 3];
    total_k = problem.k.shape[problem.k.rank - 3];
    page_size = paged ? problem.k.shape[1] : 0;
    q = RowView::Make(query);
    k = RowView::Make(problem.k);
    v = RowView::Make(problem.v);
    bias = ScoreView::Make(problem.bias);
    mask = ScoreView::Make(problem.mask);
    softmax_scale = problem.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
    softcap = problem.softcap;
    if (problem.dropout_p > 0.0) {
      dropout = Dropout::Make(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    }
    const bool uneven = Readable(problem.cu_seqlens_q) || Readable(problem.cu_seqlens_k) ||
                        Readable(problem.seqused_k);
    for (std::int64_t b = 0; b < (uneven ? batch : std::min<std::int64_t>(batch, 1)); ++b) {
      const Sequence sequence = At(b);
      max_seqlen_q = std::max(max_seqlen_q, sequence.seqlen_q);
      max_seqlen_k = std::max(max_seqlen_k, sequence.seqlen_k);
    }
  }

  // Lengths of one sequence; without the contents of a cu_seqlens (planning, or on another device),
  // those of all rows.
  Sequence At(std::int64_t b) const {
    Sequence sequence;
    sequence.seqlen_q = total_q;
    sequence.seqlen_k = page_size > 0 ? page_size * problem_.page_table.shape[1] : total_k;
    if (Readable(problem_.cu_seqlens_q)) {
      sequence.q_begin = Int(problem_.cu_seqlens_q, b);
      sequence.seqlen_q = Int(problem_.cu_seqlens_q, b + 1) - sequence.q_begin;
    }
    if (Readable(problem_.cu_seqlens_k)) {
      sequence.k_begin = Int(problem_.cu_seqlens_k, b);
      sequence.seqlen_k = Int(problem_.cu_seqlens_k, b + 1) - sequence.k_begin;
    }
    if (Readable(problem_.seqused_k)) {
      sequence.seqlen_k = std::min<std::int64_t>(sequence.seqlen_k, Int(problem_.seqused_k, b));
    }
    sequence.mask = IntervalMask::Make(problem_.causal, problem_.window_left, problem_.window_right,
                                       sequence.seqlen_q, sequence.seqlen_k);
    return sequence;
  }

  // Where key j of a sequence lies, in K or V.
  const char* KeyRow(const RowView& view, std::int64_t b, const Sequence& sequence, std::int64_t j,
                     std::int64_t head_kv) const {
    if (page_size == 0) return view.Row(b, sequence.k_begin + j, head_kv);
    const Tensor& table = problem_.page_table;
    const std::int64_t page = static_cast<const std::int32_t*>(
        table.data)[b * table.strides[0] + j / page_size * table.strides[1]];
    return view.Row(page, j % page_size, head_kv);
  }

  float AlibiSlope(std::int64_t b, std::int64_t h) const {
    const Tensor& slopes = problem_.alibi_slopes;
    if (!slopes.present()) return 0.0f;
    const std::int64_t offset =
        slopes.rank == 1 ? h * slopes.strides[0] : b * slopes.strides[0] + h * slopes.strides[1];
    return static_cast<const float*>(slopes.data)[offset];
  }
  // What a float8 score or value must be multiplied by.
  float ScoreDescale(std::int64_t b, std::int64_t head_kv) const {
    return Descale(problem_.q_descale, b, head_kv) * Descale(problem_.k_descale, b, head_kv);
  }
  float ValueDescale(std::int64_t b, std::int64_t head_kv) const {
    return Descale(problem_.v_descale, b, head_kv);
  }
  bool has_alibi() const { return problem_.alibi_slopes.present(); }
  const Problem& problem() const { return problem_; }

  std::int64_t batch = 0, num_heads = 0, num_heads_kv = 0, group = 1;
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t total_q = 0, total_k = 0;  // rows of the tensors (a batch's, unless varlen)
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  std::int64_t page_size = 0;
  RowView q, k, v;
  ScoreView bias, mask;
  double softmax_scale = 1.0;
  double softcap = 0.0;
  Dropout dropout;

 private:
  static std::int64_t Int(const Tensor& tensor, std::int64_t index) {
    return static_cast<const std::int32_t*>(tensor.data)[index * tensor.strides[0]];
  }
  static float Descale(const Tensor& tensor, std::int64_t b, std::int64_t head_kv) {
    if (tensor.data == nullptr) return 1.0f;
    return static_cast<const float*>(
        tensor.data)[b * tensor.strides[0] + head_kv * tensor.strides[1]];
  }

  const Problem& problem_;
};

}  // namespace flashwok
