#include "lib/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/layout.h"
#include "cpu/parallel_for.h"
#include "lib/terminal.h"
#include "reference/plain.h"

namespace flashwok::cli {
namespace {

// Pairs of a query and a key that the oracle takes one or two seconds for.
constexpr double kForwardBudget = 0x1p24;
constexpr double kBackwardBudget = 0x1p23;
constexpr std::int64_t kSampledHeads = 8;

// Sums over the elements of one result.
class Accumulator {
 public:
  void Add(const Tensor& got, const std::vector<double>& exact) {
    if (!got.present()) return;
    std::size_t index = 0;
    std::array<std::int64_t, Tensor::kMaxRank> at{};
    for (; index < exact.size(); ++index) {
      std::int64_t offset = 0;
      for (int axis = 0; axis < got.rank; ++axis) offset += at[axis] * got.strides[axis];
      Element(LoadAsFloat(got.data, got.dtype, offset), exact[index]);
      for (int axis = got.rank - 1; axis >= 0 && ++at[axis] == got.shape[axis]; --axis) {
        at[axis] = 0;
      }
    }
    dtype_ = got.dtype;
    count_ += static_cast<double>(index);
  }

  // `plain`: what a rougher computation makes of `exact`; may be empty.
  void AddPlain(const std::vector<double>& plain, const std::vector<double>& exact) {
    for (std::size_t index = 0; index < plain.size(); ++index) {
      plain_error_ = std::max(plain_error_, Distance(plain[index], exact[index]));
    }
  }

  // After Add: as the plain computation errs at least, even where its steps cancel.
  void AddRounding(const std::vector<double>& exact) {
    for (double value : exact) {
      if (std::isfinite(value)) {
        plain_error_ = std::max(plain_error_, Rounding(dtype_) * std::abs(value));
      }
    }
  }

  Deviation Get(const std::string& name, DType input) const {
    Deviation deviation{name, max_error_, count_ > 0 ? std::sqrt(squares_ / count_) : 0.0,
                        plain_error_, 0.0};
    const double scale = std::max(1.0, largest_);
    deviation.tolerance = 2.0 * plain_error_ + kFloor * scale;
    if (dtype_ != input) deviation.tolerance += Rounding(dtype_) * scale;
    return deviation;
  }

 private:
  static constexpr double kFloor = 1e-6;

  // Half a unit in the last place of 1.
  static double Rounding(DType dtype) {
    switch (dtype) {
      case DType::kFloat16: return 0x1p-11;
      case DType::kBFloat16: return 0x1p-8;
      default: return 0.0;
    }
  }

  static double Distance(double a, double b) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
    const double distance = std::abs(a - b);
    return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
  }

  void Element(double got, double exact) {
    const double error = Distance(got, exact);
    max_error_ = std::max(max_error_, error);
    squares_ += error * error;
    if (std::isfinite(exact)) largest_ = std::max(largest_, std::abs(exact));
  }

  double max_error_ = 0.0, squares_ = 0.0, plain_error_ = 0.0, largest_ = 0.0, count_ = 0.0;
  DType dtype_ = DType::kFloat32;
};

}  // namespace

double MaxError(const std::vector<Deviation>& deviations) {
  const auto is_gradient = [](const Deviation& d) { return d.name.starts_with('d'); };
  const bool backward = std::any_of(deviations.begin(), deviations.end(), is_gradient);
  double error = 0.0;
  for (const Deviation& d : deviations) {
    if (backward ? is_gradient(d) : d.name == "o") error = std::max(error, d.max_error);
  }
  return error;
}

Oracle::Oracle(const Problem& problem, const Tensor& dout, Pass pass, bool with_plain)
    : problem_(problem), dout_(dout), pass_(pass), with_plain_(with_plain) {
  const Slice whole(problem_);
  const Tensor& bias = problem_.bias;
  const bool summed_bias =
      pass == Pass::kBackward && bias.present() && (bias.shape[0] == 1 || bias.shape[1] == 1);
  if (problem_.dropout_p > 0.0 || summed_bias) {
    if (whole.pairs() <= kLargestGroup) parts_.emplace_back(whole);
    coverage_ = parts_.empty() ? "" : "every row";
  } else if (pass == Pass::kForward) {
    ChooseForward();
  } else {
    ChooseBackward();
  }
  ForEachPart([&](std::size_t index) { Compute(&parts_[index]); });
}

template <typename Function>
void Oracle::ForEachPart(const Function& function) const {
  double pairs = 0.0;
  for (const Part& part : parts_) pairs += part.slice.pairs();
  Progress progress("float64 oracle", pairs);
  ParallelFor(HardwareThreads(), static_cast<std::int64_t>(parts_.size()),
              [&](int, std::int64_t number) {
                const auto index = static_cast<std::size_t>(number);
                function(index);
                progress.Add(parts_[index].slice.pairs());
              });
}

// Every row of every head when that is quick, else some rows of heads spread over the whole.
void Oracle::ChooseForward() {
  const Layout layout(problem_);
  const double all = Slice(problem_).pairs();
  const std::int64_t heads = layout.batch * layout.num_heads;
  const bool every = all <= kForwardBudget;
  const std::int64_t count = every ? heads : std::min(heads, kSampledHeads);
  std::int64_t rows = layout.max_seqlen_q;
  // The ALiBi diagonal is not the top-left one, so that this pair has no part of fewer rows.
  const bool divisible = !(problem_.causal == Causal::kTopLeft && layout.has_alibi());
  if (!every && divisible) {
    const double share = kForwardBudget / all * static_cast<double>(heads) / count;
    rows = std::clamp<std::int64_t>(static_cast<std::int64_t>(share * rows), 1, rows);
  }
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t index = n * heads / count;
    parts_.emplace_back(
        Slice(problem_, index / layout.num_heads, index % layout.num_heads, 1, rows));
  }
  coverage_ = "every row";
  if (every) return;
  coverage_ = count == heads ? "every head" : fmt::format("{} of {} heads", count, heads);
  if (rows == layout.max_seqlen_q) return;
  const char* which = problem_.causal == Causal::kTopLeft ? "first" : "last";
  coverage_ += fmt::format(", the {} {} rows of each", which, rows);
}

// Whole groups of heads, since their rows add up in dK and dV.
void Oracle::ChooseBackward() {
  const Layout layout(problem_);
  const std::int64_t groups = layout.batch * layout.num_heads_kv;
  double pairs = 0.0;
  std::int64_t count = 0;
  for (; count < groups; ++count) {
    const Slice slice(problem_, count / layout.num_heads_kv,
                      count % layout.num_heads_kv * layout.group, layout.group,
                      layout.max_seqlen_q);
    if (slice.pairs() > kLargestGroup) break;
    if (count > 0 && pairs + slice.pairs() > kBackwardBudget) break;
    pairs += slice.pairs();
    parts_.emplace_back(slice);
  }
  if (count == groups) {
    coverage_ = "every row";
  } else if (count > 0) {
    coverage_ =
        fmt::format("{} of {} heads", count * layout.group, layout.batch * layout.num_heads);
  }
}

void Oracle::Compute(Part* part) const {
  const Problem problem = part->slice.Of(problem_);
  const Tensor dout = part->slice.Queries(dout_);
  const bool backward = pass_ == Pass::kBackward;
  part->forward = reference::Forward(problem);
  if (backward) part->backward = reference::Backward(problem, dout);
  if (!with_plain_) return;
  part->plain_forward = reference::PlainForward(problem);
  if (!backward) return;
  part->plain_backward = reference::PlainBackward(problem, dout);
  part->narrow_d = reference::Backward(problem, dout, {}, {}, true);
}

// Of every part; a float32 O is near enough to the oracle's own.
std::vector<reference::BackwardResult> Oracle::BackwardFrom(const Tensor& o) const {
  std::vector<reference::BackwardResult> results(parts_.size());
  const bool narrow = pass_ == Pass::kBackward && o.dtype != DType::kFloat32;
  for (std::size_t i = 0; i < parts_.size() && !narrow; ++i) results[i] = parts_[i].backward;
  if (!narrow) return results;
  ForEachPart([&](std::size_t index) {
    const Slice& slice = parts_[index].slice;
    results[index] =
        reference::Backward(slice.Of(problem_), slice.Queries(dout_), {}, slice.Queries(o));
  });
  return results;
}

std::vector<Deviation> Oracle::Compare(const ForwardOutput& output,
                                       const Gradients& gradients) const {
  const std::vector<reference::BackwardResult> given = BackwardFrom(output.o);
  Accumulator o, lse, dq, dk, dv, dbias;
  for (std::size_t index = 0; index < parts_.size(); ++index) {
    const Part& part = parts_[index];
    const Slice& slice = part.slice;
    o.Add(slice.Queries(output.o), part.forward.o);
    o.AddPlain(part.plain_forward.o, part.forward.o);
    lse.Add(slice.Lse(output.lse), part.forward.lse);
    lse.AddPlain(part.plain_forward.lse, part.forward.lse);
    const auto add = [&](Accumulator& sum, const Tensor& got, auto result) {
      if (!got.present()) return;
      sum.Add(got, given[index].*result);
      sum.AddPlain(part.plain_backward.*result, part.backward.*result);
      sum.AddPlain(part.narrow_d.*result, part.backward.*result);
      if (with_plain_) sum.AddRounding(given[index].*result);
    };
    using reference::BackwardResult;
    add(dq, slice.Queries(gradients.dq), &BackwardResult::dq);
    add(dk, slice.Keys(gradients.dk), &BackwardResult::dk);
    add(dv, slice.Keys(gradients.dv), &BackwardResult::dv);
    add(dbias, slice.Scores(gradients.dbias), &BackwardResult::dbias);
  }
  std::vector<Deviation> deviations;
  const DType input = problem_.q.dtype;
  const auto get = [&](const char* name, const Tensor& tensor, const Accumulator& sum,
                       DType dtype) {
    if (tensor.present()) deviations.push_back(sum.Get(name, dtype));
  };
  get("o", output.o, o, input);
  get("lse", output.lse, lse, DType::kFloat32);
  get("dq", gradients.dq, dq, input);
  get("dk", gradients.dk, dk, input);
  get("dv", gradients.dv, dv, input);
  get("dbias", gradients.dbias, dbias, DType::kFloat32);
  return deviations;
}

}  // namespace flashwok::cli
