#include "api/overlap.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flashwok {
namespace {

// Bytes from the first to past the last; no memory holds more.
constexpr std::int64_t kMaxSpan = std::int64_t{1} << 60;
constexpr int kPatience = 4096;  // steps of a search

// A number from low to high, times stride.
struct Term {
  std::int64_t stride, low, high;
};

// A byte of a and a byte of b are one where a sum of terms is the distance from a to b: those of a
// count up, those of b down, and equal strides are one term. Runs of bytes have stride 1.
class Distances {
 public:
  void Add(const Tensor& tensor, bool up) {
    const std::int64_t size = ItemSize(tensor.dtype);
    std::int64_t run = size;
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const std::int64_t stride = tensor.strides[axis];
      const std::int64_t steps = tensor.shape[axis] - 1;
      if (steps > 0 && stride == 1) run += steps * size;
      if (steps > 0 && stride > 1) AddTerm(stride * size, steps, up);
    }
    AddTerm(1, run - 1, up);
  }

  bool Reach(std::int64_t distance) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    patience_ = kPatience;
    return Reach(distance, 0);
  }

 private:
  void AddTerm(std::int64_t stride, std::int64_t count, bool up) {
    const auto same = std::find_if(terms_.begin(), terms_.end(),
                                   [&](const Term& term) { return term.stride == stride; });
    Term& term = same == terms_.end() ? terms_.emplace_back(Term{stride, 0, 0}) : *same;
    (up ? term.high : term.low) += up ? count : -count;
  }

  // Whether the terms from `first` on add up to `distance`: tries, of the largest stride, what
  // leaves the others within reach. Where strides nest that is three numbers at the most.
  bool Reach(std::int64_t distance, std::size_t first) {
    const Term& term = terms_[first];
    if (first + 1 == terms_.size()) return term.low <= distance && distance <= term.high;
    if (--patience_ < 0) return true;
    std::int64_t low = 0, high = 0;  // of the terms after this one
    for (std::size_t n = first + 1; n < terms_.size(); ++n) {
      low += terms_[n].stride * terms_[n].low;
      high += terms_[n].stride * terms_[n].high;
    }
    const std::int64_t begin = std::max(term.low, CeilDiv(distance - high, term.stride));
    const std::int64_t end = std::min(term.high, FloorDiv(distance - low, term.stride));
    for (std::int64_t n = begin; n <= end; ++n) {
      if (Reach(distance - n * term.stride, first + 1)) return true;
    }
    return false;
  }

  static std::int64_t FloorDiv(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }
  static std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return -FloorDiv(-a, b); }

  std::vector<Term> terms_;
  int patience_ = 0;
};

std::int64_t Span(const Tensor& tensor) {
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] > 1) last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  }
  return (last + 1) * ItemSize(tensor.dtype);
}

}  // namespace

bool Overlap(const Tensor& a, const Tensor& b) {
  if (a.data == nullptr || b.data == nullptr) return false;
  if (a.num_elements() == 0 || b.num_elements() == 0) return false;
  const std::int64_t span_a = Span(a);
  const std::int64_t span_b = Span(b);
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  const bool a_first = begin_a <= begin_b;
  const std::uint64_t between = a_first ? begin_b - begin_a : begin_a - begin_b;
  if (between >= static_cast<std::uint64_t>(a_first ? span_a : span_b)) return false;
  if (std::max(span_a, span_b) > kMaxSpan) return true;
  const auto distance = static_cast<std::int64_t>(between);
  Distances distances;
  distances.Add(a, true);
  distances.Add(b, false);
  return distances.Reach(a_first ? distance : -distance);
}

}  // namespace flashwok
