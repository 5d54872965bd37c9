#include "reference/head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "common/dtype.h"
#include "common/philox.h"

namespace flashwok::reference {
namespace {

using Index = std::array<std::int64_t, Tensor::kMaxRank>;

double Load(const Tensor& tensor, const Index& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) offset += index[axis] * tensor.strides[axis];
  return LoadAsFloat(tensor.data, tensor.dtype, offset);
}

std::int64_t LoadInt(const Tensor& tensor, std::int64_t i) {
  return static_cast<const std::int32_t*>(tensor.data)[i * tensor.strides[0]];
}

// Position in `tensor` of an index whose axes of extent 1 broadcast.
Index Broadcast(const Tensor& tensor, Index index) {
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] == 1) index[axis] = 0;
  }
  return index;
}

double Descale(const Tensor& descale, std::int64_t batch, std::int64_t head_kv) {
  return descale.present() ? Load(descale, {batch, head_kv}) : 1.0;
}

}  // namespace

Sizes::Sizes(const Problem& p)
    : varlen(p.cu_seqlens_q.present()),
      batch(varlen ? p.cu_seqlens_q.shape[0] - 1 : p.q.shape[0]),
      rows_q(varlen ? p.q.shape[0] : p.q.shape[0] * p.q.shape[1]),
      rows_k(varlen ? p.k.shape[0] : p.k.shape[0] * p.k.shape[1]),
      num_heads(p.q.shape[p.q.rank - 2]),
      num_heads_kv(p.k.shape[p.k.rank - 2]),
      head_dim(p.q.shape[p.q.rank - 1]),
      head_dim_v(p.v.shape[p.v.rank - 1]) {}

Head::Head(const Problem& problem, std::int64_t batch, std::int64_t head)
    : softmax_scale(problem.softmax_scale.value_or(
          1.0 / std::sqrt(static_cast<double>(problem.q.shape[problem.q.rank - 1])))),
      softcap(problem.softcap),
      problem_(problem),
      sizes_(problem),
      batch_(batch),
      head_(head),
      head_kv_(head / (sizes_.num_heads / sizes_.num_heads_kv)) {
  if (sizes_.varlen) {
    first_q_ = LoadInt(problem.cu_seqlens_q, batch);
    first_k_ = LoadInt(problem.cu_seqlens_k, batch);
    seqlen_q = LoadInt(problem.cu_seqlens_q, batch + 1) - first_q_;
    seqlen_k = LoadInt(problem.cu_seqlens_k, batch + 1) - first_k_;
  } else {
    seqlen_q = problem.q.shape[1];
    seqlen_k = problem.page_table.present() ? std::numeric_limits<std::int32_t>::max()
                                            : problem.k.shape[1];
    first_q_ = batch * seqlen_q;
    first_k_ = batch * seqlen_k;
  }
  if (problem.seqused_k.present()) {
    seqlen_k = std::min(seqlen_k, LoadInt(problem.seqused_k, batch));
  }
  Gather();
}

void Head::Gather() {
  const Problem& p = problem_;
  q = Matrix(seqlen_q, sizes_.head_dim);
  k = Matrix(seqlen_k, sizes_.head_dim);
  v = Matrix(seqlen_k, sizes_.head_dim_v);
  const double q_descale = Descale(p.q_descale, batch_, head_kv_);
  const double k_descale = Descale(p.k_descale, batch_, head_kv_);
  const double v_descale = Descale(p.v_descale, batch_, head_kv_);
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    for (std::int64_t c = 0; c < q.cols; ++c) {
      const Index index =
          sizes_.varlen ? Index{first_q_ + i, head_, c} : Index{batch_, i, head_, c};
      q[i][c] = q_descale * Load(p.q, index);
    }
  }
  for (std::int64_t j = 0; j < seqlen_k; ++j) {
    Index index = sizes_.varlen ? Index{first_k_ + j, head_kv_} : Index{batch_, j, head_kv_};
    if (p.page_table.present()) {
      const std::int64_t page_size = p.k.shape[1];
      const std::int64_t page_row = batch_ * p.page_table.strides[0];
      const std::int64_t page_column = j / page_size * p.page_table.strides[1];
      const auto* pages = static_cast<const std::int32_t*>(p.page_table.data);
      index = {pages[page_row + page_column], j % page_size, head_kv_};
    }
    std::int64_t& column = index[sizes_.varlen ? 2 : 3];
    for (column = 0; column < k.cols; ++column) k[j][column] = k_descale * Load(p.k, index);
    for (column = 0; column < v.cols; ++column) v[j][column] = v_descale * Load(p.v, index);
  }
}

bool Head::Visible(std::int64_t i, std::int64_t j) const {
  const Problem& p = problem_;
  const std::int64_t diagonal = p.causal == Causal::kTopLeft ? i : i + seqlen_k - seqlen_q;
  if (p.causal != Causal::kNone && j > diagonal) return false;
  if (p.window_left >= 0 && diagonal - j > p.window_left) return false;
  if (p.window_right >= 0 && j - diagonal > p.window_right) return false;
  if (p.mask.present() && Load(p.mask, Broadcast(p.mask, {batch_, head_, i, j})) == 0.0) {
    return false;
  }
  return Bias(i, j) != -std::numeric_limits<double>::infinity();
}

double Head::Bias(std::int64_t i, std::int64_t j) const {
  if (!problem_.bias.present()) return 0.0;
  return Load(problem_.bias, Broadcast(problem_.bias, {batch_, head_, i, j}));
}

double Head::Alibi(std::int64_t i, std::int64_t j) const {
  const Tensor& slopes = problem_.alibi_slopes;
  if (!slopes.present()) return 0.0;
  const double slope = Load(slopes, slopes.rank == 1 ? Index{head_} : Index{batch_, head_});
  return -slope * static_cast<double>(std::abs(i + seqlen_k - seqlen_q - j));
}

double Head::KeepScale(std::int64_t i, std::int64_t j) const {
  const Problem& p = problem_;
  if (p.dropout_p == 0.0) return 1.0;
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  const PhiloxCounter counter = {static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i),
                                 static_cast<std::uint32_t>(batch_ * sizes_.num_heads + head_),
                                 low(p.dropout_offset)};
  const PhiloxKey key = {low(p.dropout_seed), high(p.dropout_seed) ^ high(p.dropout_offset)};
  const auto threshold = static_cast<std::uint32_t>(std::floor(std::ldexp(p.dropout_p, 32)));
  const bool keep = Philox4x32(counter, key)[j % 4] >= threshold;
  return keep ? 1.0 / (1.0 - p.dropout_p) : 0.0;
}

std::int64_t Head::RowOf(std::int64_t i) const { return (first_q_ + i) * sizes_.num_heads + head_; }

std::int64_t Head::LseOf(std::int64_t i) const {
  if (sizes_.varlen) return head_ * sizes_.rows_q + first_q_ + i;
  return (batch_ * sizes_.num_heads + head_) * seqlen_q + i;
}

std::int64_t Head::KeyOf(std::int64_t j) const {
  return (first_k_ + j) * sizes_.num_heads_kv + head_kv_;
}

std::int64_t Head::BiasOf(std::int64_t i, std::int64_t j) const {
  const Tensor& bias = problem_.bias;
  const Index index = Broadcast(bias, {batch_, head_, i, j});
  std::int64_t offset = 0;
  for (int axis = 0; axis < bias.rank; ++axis) offset = offset * bias.shape[axis] + index[axis];
  return offset;
}

std::vector<double> Head::LoadRow(const Tensor& tensor, std::int64_t i) const {
  std::vector<double> row(static_cast<std::size_t>(sizes_.head_dim_v));
  for (std::int64_t c = 0; c < sizes_.head_dim_v; ++c) {
    row[c] =
        Load(tensor, sizes_.varlen ? Index{first_q_ + i, head_, c} : Index{batch_, i, head_, c});
  }
  return row;
}

double Head::LoadLse(const Tensor& tensor, std::int64_t i) const {
  if (!tensor.present()) return 0.0;
  return Load(tensor, sizes_.varlen ? Index{head_, first_q_ + i} : Index{batch_, head_, i});
}

}  // namespace flashwok::reference
