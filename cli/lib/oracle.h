// How far results are from float64, and how far they may be.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "flashwok/attention.h"
#include "lib/slice.h"
#include "lib/text.h"
#include "reference/reference.h"

namespace flashwok::cli {

struct Deviation {
  std::string name;  // "o", "lse", "dq", ...
  double max_error = 0.0;
  double rmse = 0.0;
  double plain_error = 0.0;  // of the plain computation in the inputs' dtype
  double tolerance = 0.0;    // 2 * plain_error + floor
  bool passes() const { return std::isfinite(max_error) && max_error <= tolerance; }
};
// Of O, or with the backward pass of the gradients.
double MaxError(const std::vector<Deviation>& deviations);

// The float64 results of a problem, or of parts of it when the whole would take long: computed
// once, compared with as many kernels as one likes; only the gradients anew for each narrow O.
class Oracle {
 public:
  // Pairs of a query and a key of the largest group of heads that it still starts on.
  static constexpr double kLargestGroup = 0x1p25;

  // `with_plain`: also the plain computation, which sets the tolerance.
  Oracle(const Problem& problem, const Tensor& dout, Pass pass, bool with_plain);

  // What was computed: "every row", "8 of 64 heads, the last 256 rows of each", or empty: nothing.
  const std::string& coverage() const { return coverage_; }

  // `gradients`, if any, are judged as those from `output`'s O.
  std::vector<Deviation> Compare(const ForwardOutput& output, const Gradients& gradients) const;

 private:
  struct Part {
    explicit Part(const Slice& where) : slice(where) {}
    Slice slice;
    reference::ForwardResult forward, plain_forward;
    reference::BackwardResult backward, plain_backward;
    reference::BackwardResult narrow_d;  // exact but for D in float32
  };
  void ChooseForward();
  void ChooseBackward();
  // Calls function(index of a part) for every part, on all cores.
  template <typename Function>
  void ForEachPart(const Function& function) const;
  void Compute(Part* part) const;
  std::vector<reference::BackwardResult> BackwardFrom(const Tensor& o) const;

  const Problem problem_;
  const Tensor dout_;
  const Pass pass_;
  const bool with_plain_;
  std::vector<Part> parts_;
  std::string coverage_;
};

}  // namespace flashwok::cli
