// The tensors of a Case: random inputs and outputs full of NaN, in guarded memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "flashwok/attention.h"
#include "reference/head.h"
#include "tests/cases.h"
#include "tests/guarded_memory.h"

namespace flashwok::test {

// FLASHWOK_TEST_SEED, or a fresh one.
inline std::uint64_t Seed() {
  static const std::uint64_t seed = [] {
    if (const char* text = std::getenv("FLASHWOK_TEST_SEED"))
      return std::strtoull(text, nullptr, 10);
    return static_cast<unsigned long long>(std::random_device{}());
  }();
  return seed;
}

class ProblemData {
 public:
  explicit ProblemData(const Case& c, std::uint64_t seed = Seed()) : case_(c), seed_(seed) {
    std::uint64_t hash = seed;  // each case has its own numbers, whichever ran before it
    for (char letter : c.name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
    random_.seed(hash);
    Options();
    Lengths();
    Inputs();
    Extras();
    Outputs();
    if (c.poison) Poison();
    memory_.Seal();
  }
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;

  Problem problem;
  ForwardOutput output;  // o and lse
  BackwardInput backward;
  Gradients gradients;
  Tensor row_max, row_sum;  // for V1, where a test wants them

  const Case& test_case() const { return case_; }

  // For the message of a failure: how to run this case again.
  std::string Describe() const {
    return "case " + case_.name + ", FLASHWOK_TEST_SEED=" + std::to_string(seed_);
  }

  // Fills the outputs with NaN again.
  void ResetOutputs() { memory_.ResetOutputs(); }

  // The buffer that was written where it may not be; empty when all is well.
  std::string GuardError() const { return memory_.Error(); }

  GuardedMemory& memory() { return memory_; }

 private:
  static std::int64_t Product(const Extents& extents) {
    return std::accumulate(extents.begin(), extents.end(), std::int64_t{1},
                           [](auto a, auto b) { return a * std::max<std::int64_t>(b, 1); });
  }

  // A tensor of its own: contiguous, or padded at the end of each axis and one element off
  // alignment in a sliced case.
  Tensor New(const std::string& name, DType dtype, const Extents& shape, bool is_output) {
    const bool sliced = case_.layout == Layout::kSliced && shape.size() > 1;
    Extents memory = shape;
    if (sliced) {
      for (std::int64_t& extent : memory) extent += 3;
    }
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    auto* buffer = memory_.New(name, (Product(memory) + 1) * ItemSize(dtype), is_output);
    return GuardedMemory::View(buffer, dtype, shape, memory, order, sliced ? 1 : 0);
  }

  // A tensor of rows and heads, in the case's layout.
  Tensor NewRows(const std::string& name, DType dtype, const Extents& shape, bool is_output) {
    const int rank = static_cast<int>(shape.size());
    Extents memory = shape;
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (case_.layout == Layout::kBhsd) {
      std::swap(order[rank - 3], order[rank - 2]);
    } else if (case_.layout == Layout::kBroadcast && !is_output) {
      memory[name == "q" ? rank - 2 : 0] = GuardedMemory::kBroadcast;
    } else {
      return New(name, dtype, shape, is_output);
    }
    auto* buffer = memory_.New(name, Product(memory) * ItemSize(dtype), is_output);
    return GuardedMemory::View(buffer, dtype, shape, memory, order, 0);
  }

  // q, k, v or their gradients; packed: heads of all three side by side in each row.
  std::array<Tensor, 3> NewQkv(const std::array<std::string, 3>& names, DType dtype,
                               const std::array<Extents, 3>& shapes, bool is_output) {
    std::array<Tensor, 3> tensors;
    if (case_.layout != Layout::kPackedQkv) {
      for (int n = 0; n < 3; ++n) tensors[n] = NewRows(names[n], dtype, shapes[n], is_output);
      return tensors;
    }
    Extents memory = shapes[0];
    const std::size_t heads = memory.size() - 2;
    memory[heads] += shapes[1][heads] + shapes[2][heads];
    std::vector<int> order(memory.size());
    std::iota(order.begin(), order.end(), 0);
    auto* buffer =
        memory_.New(names[0] + names[1] + names[2], Product(memory) * ItemSize(dtype), is_output);
    std::int64_t offset = 0;
    for (int n = 0; n < 3; ++n) {
      tensors[n] = GuardedMemory::View(buffer, dtype, shapes[n], memory, order, offset);
      offset += shapes[n][heads] * shapes[n].back();
    }
    return tensors;
  }

  double Normal() { return normal_(random_); }
  double Uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }

  template <class Make>
  static void Fill(const Tensor& tensor, Make make) {
    ForEachElement(tensor, [&](std::int64_t offset) {
      StoreFromFloat(tensor.data, tensor.dtype, offset, static_cast<float>(make()));
    });
  }

  Tensor NewInts(const std::string& name, const std::vector<int>& values) {
    Tensor tensor = New(name, DType::kInt32, {static_cast<std::int64_t>(values.size())}, false);
    if (!values.empty()) std::memcpy(tensor.data, values.data(), values.size() * sizeof(int));
    return tensor;
  }

  bool varlen() const { return !case_.lengths_q.empty(); }
  std::int64_t batch() const {
    return varlen() ? static_cast<std::int64_t>(case_.lengths_q.size()) : case_.batch;
  }
  std::int64_t num_heads_kv() const {
    return case_.num_heads_kv == 0 ? case_.num_heads : case_.num_heads_kv;
  }
  std::int64_t head_dim_v() const {
    return case_.head_dim_v == 0 ? case_.head_dim : case_.head_dim_v;
  }

  void Options();
  void Lengths();
  void Pages();
  void Inputs();
  void FillKeys(const Tensor& tensor);
  void Extras();
  Tensor NewScores(const std::string& name, Axes axes, DType dtype);
  void Outputs();
  void Poison();

  const Case case_;
  const std::uint64_t seed_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  GuardedMemory memory_;
  Extents rows_q_, rows_k_;  // the axes before the heads
  std::int64_t longest_q_ = 0, longest_k_ = 0;
};

inline void ProblemData::Options() {
  problem.causal = case_.causal;
  problem.window_left = case_.window_left;
  problem.window_right = case_.window_right;
  problem.softmax_scale = case_.softmax_scale;
  problem.softcap = case_.softcap;
  problem.dropout_p = case_.dropout_p;
  problem.dropout_seed = random_();
  problem.dropout_offset = random_();
}

inline void ProblemData::Lengths() {
  rows_q_ = {case_.batch, case_.seqlen_q};
  rows_k_ = {case_.batch, case_.seqlen_k};
  longest_q_ = case_.seqlen_q;
  longest_k_ = case_.seqlen_k;
  if (varlen()) {
    const auto cumulative = [](const std::vector<int>& lengths) {
      std::vector<int> sums(lengths.size() + 1);
      std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
      return sums;
    };
    const std::vector<int> sums_q = cumulative(case_.lengths_q);
    const std::vector<int> sums_k = cumulative(case_.lengths_k);
    problem.cu_seqlens_q = NewInts("cu_seqlens_q", sums_q);
    problem.cu_seqlens_k = NewInts("cu_seqlens_k", sums_k);
    rows_q_ = {sums_q.back()};
    rows_k_ = {sums_k.back()};
    longest_q_ = *std::max_element(case_.lengths_q.begin(), case_.lengths_q.end());
    longest_k_ = *std::max_element(case_.lengths_k.begin(), case_.lengths_k.end());
  }
  if (!case_.seqused_k.empty()) problem.seqused_k = NewInts("seqused_k", case_.seqused_k);
  if (case_.page_size > 0) Pages();
}

// Every sequence gets its pages scattered over a pool with spare ones; unused entries are -1.
inline void ProblemData::Pages() {
  longest_k_ = *std::max_element(case_.seqused_k.begin(), case_.seqused_k.end());
  const std::int64_t max_pages = longest_k_ / case_.page_size + 2;
  std::vector<int> pool(static_cast<std::size_t>(case_.batch * max_pages));
  std::iota(pool.begin(), pool.end(), 0);
  std::shuffle(pool.begin(), pool.end(), random_);
  problem.page_table = New("page_table", DType::kInt32, {case_.batch, max_pages}, false);
  for (std::int64_t b = 0; b < case_.batch; ++b) {
    for (std::int64_t n = 0; n * case_.page_size < case_.seqused_k[b]; ++n) {
      static_cast<std::int32_t*>(problem.page_table.data)[b * problem.page_table.strides[0] + n] =
          pool[b * max_pages + n];
    }
  }
  rows_k_ = {static_cast<std::int64_t>(pool.size()), case_.page_size};
}

inline void ProblemData::Inputs() {
  const auto shape = [](Extents rows, std::int64_t heads, std::int64_t dim) {
    rows.push_back(heads);
    rows.push_back(dim);
    return rows;
  };
  const auto [q, k, v] = NewQkv({"q", "k", "v"}, case_.dtype,
                                {shape(rows_q_, case_.num_heads, case_.head_dim),
                                 shape(rows_k_, num_heads_kv(), case_.head_dim),
                                 shape(rows_k_, num_heads_kv(), head_dim_v())},
                                false);
  problem.q = q;
  problem.k = k;
  problem.v = v;
  Fill(q, [&] { return case_.magnitude * Normal(); });
  FillKeys(k);
  FillKeys(v);
  if (case_.nan_row) {
    for (std::int64_t c = 0; c < case_.head_dim; ++c) {
      StoreFromFloat(q.data, q.dtype, c, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

// Only the keys in use; the others stay NaN.
inline void ProblemData::FillKeys(const Tensor& tensor) {
  if (case_.seqused_k.empty()) return Fill(tensor, [&] { return case_.magnitude * Normal(); });
  std::int64_t first = 0;
  for (std::int64_t b = 0; b < batch(); ++b) {
    for (std::int64_t j = 0; j < case_.seqused_k[b]; ++j) {
      Tensor key = tensor;  // one row of heads
      std::int64_t offset = (first + j) * tensor.strides[0];
      if (!varlen()) offset = b * tensor.strides[0] + j * tensor.strides[1];
      if (case_.page_size > 0) {
        const Tensor& table = problem.page_table;
        const std::int64_t page = static_cast<const std::int32_t*>(
            table.data)[b * table.strides[0] + j / case_.page_size];
        offset = page * tensor.strides[0] + j % case_.page_size * tensor.strides[1];
      }
      key.shape[0] = 1;
      if (!varlen()) key.shape[1] = 1;
      key.data = static_cast<std::byte*>(key.data) + offset * ItemSize(key.dtype);
      Fill(key, [&] { return case_.magnitude * Normal(); });
    }
    if (varlen()) first += case_.lengths_k[b];
  }
}

inline Tensor ProblemData::NewScores(const std::string& name, Axes axes, DType dtype) {
  const bool per_batch = axes == Axes::kFull || axes == Axes::kKeys;
  const bool per_head = axes == Axes::kFull || axes == Axes::kHeads;
  const std::int64_t spare = varlen() ? 3 : 0;  // beyond the longest sequence
  return New(name, dtype,
             {per_batch ? batch() : 1, per_head ? case_.num_heads : 1,
              axes == Axes::kKeys ? 1 : longest_q_ + spare, longest_k_ + spare},
             false);
}

inline void ProblemData::Extras() {
  if (case_.bias != Axes::kNone) {
    problem.bias =
        NewScores("bias", case_.bias, case_.bias_in_dtype ? case_.dtype : DType::kFloat32);
    std::int64_t n = 0;
    Fill(problem.bias, [&] {
      const bool hidden = case_.bias_hides && n++ % 3 == 0;
      return hidden ? -std::numeric_limits<double>::infinity() : Normal();
    });
  }
  if (case_.mask != Axes::kNone) {
    problem.mask = NewScores("mask", case_.mask, DType::kBool);
    const std::int64_t columns = problem.mask.shape[3];
    std::int64_t n = 0;
    Fill(problem.mask, [&] {
      const bool row_hidden = case_.mask == Axes::kFull && n++ / columns % 5 == 2;
      return !row_hidden && Uniform() < 0.7;
    });
  }
  if (case_.alibi != Alibi::kNone) {
    const Extents shape =
        case_.alibi == Alibi::kHeads ? Extents{case_.num_heads} : Extents{batch(), case_.num_heads};
    problem.alibi_slopes = New("alibi_slopes", DType::kFloat32, shape, false);
    Fill(problem.alibi_slopes, [&] { return 0.5 * Uniform(); });
  }
  if (!case_.descale) return;
  for (const auto& [name, tensor] :
       {std::pair{"q_descale", &problem.q_descale}, std::pair{"k_descale", &problem.k_descale},
        std::pair{"v_descale", &problem.v_descale}}) {
    *tensor = New(name, DType::kFloat32, {batch(), num_heads_kv()}, false);
    Fill(*tensor, [&] { return 0.5 + Uniform(); });
  }
}

inline void ProblemData::Outputs() {
  DType dtype = IsFloat8(case_.dtype) ? DType::kBFloat16 : case_.dtype;
  if (case_.float32_output) dtype = DType::kFloat32;
  Extents rows = rows_q_;
  rows.insert(rows.end(), {case_.num_heads, head_dim_v()});
  const Extents scalars = varlen() ? Extents{case_.num_heads, rows_q_[0]}
                                   : Extents{case_.batch, case_.num_heads, case_.seqlen_q};
  output.o = NewRows("o", dtype, rows, true);
  output.lse = New("lse", DType::kFloat32, scalars, true);
  row_max = New("row_max", DType::kFloat32, scalars, true);
  row_sum = New("row_sum", DType::kFloat32, scalars, true);
  if (!case_.backward) return;
  backward.o = output.o;
  backward.lse = output.lse;
  backward.dout = New("dout", dtype, rows, false);
  Fill(backward.dout, [&] { return Normal(); });
  if (case_.dlse) {
    backward.dlse = New("dlse", DType::kFloat32, scalars, false);
    Fill(backward.dlse, [&] { return Normal(); });
  }
  const auto shape = [](const Tensor& tensor) {
    return Extents(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  };
  const auto [dq, dk, dv] =
      NewQkv({"dq", "dk", "dv"}, case_.float32_output ? DType::kFloat32 : case_.dtype,
             {shape(problem.q), shape(problem.k), shape(problem.v)}, true);
  gradients.dq = dq;
  gradients.dk = dk;
  gradients.dv = dv;
  if (problem.bias.present()) {
    gradients.dbias = New("dbias", DType::kFloat32, shape(problem.bias), true);
  }
}

// For cases of equal lengths.
inline void ProblemData::Poison() {
  const std::int64_t group = case_.num_heads / num_heads_kv();
  for (std::int64_t b = 0; b < case_.batch; ++b) {
    for (std::int64_t h = 0; h < num_heads_kv(); ++h) {
      std::vector<bool> seen(static_cast<std::size_t>(case_.seqlen_k));
      for (std::int64_t n = 0; n < group; ++n) {
        const reference::Head head(problem, b, h * group + n);
        for (std::int64_t i = 0; i < head.seqlen_q; ++i) {
          for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
            if (head.Visible(i, j)) seen[j] = true;
          }
        }
      }
      for (const Tensor& tensor : {problem.k, problem.v}) {
        for (std::int64_t j = 0; j < case_.seqlen_k; ++j) {
          if (seen[j]) continue;
          const std::int64_t offset =
              b * tensor.strides[0] + j * tensor.strides[1] + h * tensor.strides[2];
          const std::int64_t item = ItemSize(tensor.dtype);
          std::memset(static_cast<std::byte*>(tensor.data) + offset * item, 0xFF,
                      static_cast<std::size_t>(tensor.shape[3] * item));
        }
      }
    }
  }
}

}  // namespace flashwok::test
