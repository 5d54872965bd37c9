// A part of a problem that is a problem of its own with the same numbers in it: some heads of one
// sequence, and of its rows the last ones.
#pragma once

#include <cstdint>

#include "flashwok/attention.h"

namespace flashwok::cli {

class Slice {
 public:
  // All of it.
  explicit Slice(const Problem& problem);
  // `rows` of sequence `batch`, all its keys: the last rows, whose bottom-right diagonal is the
  // whole problem's; with kTopLeft the first. Heads [head, head + heads), one or a whole group.
  // Dropout has no such part, since its bits depend on the place in the whole.
  Slice(const Problem& problem, std::int64_t batch, std::int64_t head, std::int64_t heads,
        std::int64_t rows);

  Problem Of(const Problem& problem) const;
  Tensor Queries(const Tensor& tensor) const;  // shaped like q, o, dq or dout
  Tensor Keys(const Tensor& tensor) const;     // shaped like k, v, dk or dv
  Tensor Lse(const Tensor& tensor) const;      // shaped like lse
  Tensor Scores(const Tensor& tensor) const;   // shaped like bias or mask

  double pairs() const { return pairs_; }  // rows times keys times heads

 private:
  Tensor Heads(const Tensor& tensor) const;

  bool whole_ = false;
  bool varlen_ = false;
  bool paged_ = false;
  std::int64_t batch_ = 0;
  std::int64_t head_ = 0, heads_ = 0;
  std::int64_t head_kv_ = 0, heads_kv_ = 0;
  std::int64_t row_ = 0, rows_ = 0;  // within the sequence
  std::int64_t q_begin_ = 0;         // of the sequence, varlen
  std::int64_t k_begin_ = 0, keys_ = 0;
  double pairs_ = 0.0;
};

}  // namespace flashwok::cli
