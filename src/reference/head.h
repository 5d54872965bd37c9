// One query head of one sequence, gathered into float64, with the rules of the scores written as
// the definitions read. Shares nothing with the kernels but the conversions and the random bits.
#pragma once

#include <cstdint>
#include <vector>

#include "flashwok/attention.h"

namespace flashwok::reference {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(std::int64_t num_rows, std::int64_t num_cols)
      : rows(num_rows), cols(num_cols), values(static_cast<std::size_t>(num_rows * num_cols)) {}
  double* operator[](std::int64_t row) { return values.data() + row * cols; }
  const double* operator[](std::int64_t row) const { return values.data() + row * cols; }
};

// Sizes of a whole problem.
struct Sizes {
  explicit Sizes(const Problem& problem);

  bool varlen;
  std::int64_t batch;
  std::int64_t rows_q;  // total_q, or batch * seqlen_q
  std::int64_t rows_k;
  std::int64_t num_heads, num_heads_kv;
  std::int64_t head_dim, head_dim_v;
};

class Head {
 public:
  Head(const Problem& problem, std::int64_t batch, std::int64_t head);

  // Whether row i sees key j: masks and a bias of -inf hide it.
  bool Visible(std::int64_t i, std::int64_t j) const;
  // What is added to the score.
  double Bias(std::int64_t i, std::int64_t j) const;
  double Alibi(std::int64_t i, std::int64_t j) const;
  // 0 where dropout drops P(i, j), else 1 / (1 - dropout_p).
  double KeepScale(std::int64_t i, std::int64_t j) const;

  // Offsets in contiguous results: of row i in [rows, num_heads, .] and in lse, of key j in
  // [rows, num_heads_kv, .], of an element of bias.
  std::int64_t RowOf(std::int64_t i) const;
  std::int64_t LseOf(std::int64_t i) const;
  std::int64_t KeyOf(std::int64_t j) const;
  std::int64_t BiasOf(std::int64_t i, std::int64_t j) const;
  // A tensor shaped like o or lse at this head's row i.
  std::vector<double> LoadRow(const Tensor& tensor, std::int64_t i) const;
  double LoadLse(const Tensor& tensor, std::int64_t i) const;

  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;  // the keys in use
  double softmax_scale = 1.0;
  double softcap = 0.0;
  Matrix q, k, v;

 private:
  void Gather();

  const Problem& problem_;
  const Sizes sizes_;
  const std::int64_t batch_, head_, head_kv_;
  std::int64_t first_q_ = 0;  // rows before this sequence: in the tensor (varlen) or in the batch
  std::int64_t first_k_ = 0;
};

}  // namespace flashwok::reference
