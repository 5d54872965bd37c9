#include "lib/slice.h"

#include <algorithm>

#include "common/layout.h"

namespace flashwok::cli {
namespace {

Tensor Part(Tensor tensor, int axis, std::int64_t begin, std::int64_t count) {
  tensor.data =
      static_cast<char*>(tensor.data) + begin * tensor.strides[axis] * ItemSize(tensor.dtype);
  tensor.shape[axis] = count;
  return tensor;
}

// The same elements under a new first axis of extent 1.
Tensor WithBatch(const Tensor& tensor) {
  Tensor result = tensor;
  result.rank = tensor.rank + 1;
  result.shape[0] = 1;
  result.strides[0] = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    result.shape[axis + 1] = tensor.shape[axis];
    result.strides[axis + 1] = tensor.strides[axis];
  }
  return result;
}

std::int64_t EndOfKeys(const Problem& problem, std::int64_t batch) {
  const Tensor& cu_seqlens = problem.cu_seqlens_k;
  return static_cast<const std::int32_t*>(cu_seqlens.data)[(batch + 1) * cu_seqlens.strides[0]];
}

}  // namespace

Slice::Slice(const Problem& problem) : whole_(true) {
  const Layout layout(problem);
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    const Sequence sequence = layout.At(b);
    pairs_ += static_cast<double>(sequence.seqlen_q) * static_cast<double>(sequence.seqlen_k) *
              static_cast<double>(layout.num_heads);
  }
}

Slice::Slice(const Problem& problem, std::int64_t batch, std::int64_t head, std::int64_t heads,
             std::int64_t rows)
    : varlen_(problem.cu_seqlens_q.present()),
      paged_(problem.page_table.present()),
      batch_(batch),
      head_(head),
      heads_(heads) {
  const Layout layout(problem);
  const Sequence sequence = layout.At(batch);
  head_kv_ = head / layout.group;
  heads_kv_ = std::max<std::int64_t>(1, heads / layout.group);
  rows_ = std::min(rows, sequence.seqlen_q);
  row_ = problem.causal == Causal::kTopLeft ? 0 : sequence.seqlen_q - rows_;
  q_begin_ = sequence.q_begin;
  k_begin_ = sequence.k_begin;
  keys_ = varlen_ ? EndOfKeys(problem, batch) - k_begin_ : layout.total_k;
  pairs_ = static_cast<double>(rows_) * static_cast<double>(sequence.seqlen_k) *
           static_cast<double>(heads);
}

Tensor Slice::Queries(const Tensor& tensor) const {
  if (whole_ || !tensor.present()) return tensor;
  const Tensor sequence = varlen_ ? WithBatch(tensor) : Part(tensor, 0, batch_, 1);
  return Part(Part(sequence, 1, q_begin_ + row_, rows_), 2, head_, heads_);
}

Tensor Slice::Keys(const Tensor& tensor) const {
  if (whole_ || !tensor.present()) return tensor;
  if (paged_) return Part(tensor, 2, head_kv_, heads_kv_);
  const Tensor sequence =
      varlen_ ? Part(WithBatch(tensor), 1, k_begin_, keys_) : Part(tensor, 0, batch_, 1);
  return Part(sequence, 2, head_kv_, heads_kv_);
}

Tensor Slice::Lse(const Tensor& tensor) const {
  if (whole_ || !tensor.present()) return tensor;
  const Tensor sequence = varlen_ ? WithBatch(tensor) : Part(tensor, 0, batch_, 1);
  return Part(Part(sequence, 1, head_, heads_), 2, q_begin_ + row_, rows_);
}

Tensor Slice::Scores(const Tensor& tensor) const {
  if (whole_ || !tensor.present()) return tensor;
  Tensor part = tensor;
  if (part.shape[0] > 1) part = Part(part, 0, batch_, 1);
  if (part.shape[1] > 1) part = Part(part, 1, head_, heads_);
  if (part.shape[2] > 1) part = Part(part, 2, row_, rows_);
  return part;
}

Tensor Slice::Heads(const Tensor& tensor) const {
  if (whole_ || !tensor.present()) return tensor;
  return Part(Part(tensor, 0, batch_, 1), 1, head_kv_, heads_kv_);
}

Problem Slice::Of(const Problem& problem) const {
  if (whole_) return problem;
  Problem part = problem;
  part.q = Queries(problem.q);
  part.k = Keys(problem.k);
  part.v = Keys(problem.v);
  part.cu_seqlens_q = part.cu_seqlens_k = Tensor{};
  for (Tensor* lengths : {&part.seqused_k, &part.page_table}) {
    if (lengths->present()) *lengths = Part(*lengths, 0, batch_, 1);
  }
  part.bias = Scores(problem.bias);
  part.mask = Scores(problem.mask);
  Tensor& slopes = part.alibi_slopes;
  if (slopes.rank == 2) slopes = Part(slopes, 0, batch_, 1);
  if (slopes.present()) slopes = Part(slopes, slopes.rank - 1, head_, heads_);
  part.q_descale = Heads(problem.q_descale);
  part.k_descale = Heads(problem.k_descale);
  part.v_descale = Heads(problem.v_descale);
  return part;
}

}  // namespace flashwok::cli
