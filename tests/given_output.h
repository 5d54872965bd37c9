// The oracle's gradients for the O that a backward pass is given: D = rowsum(dO * O) is taken from
// it, so where O is narrow, its rounding belongs to the input and not to the kernel.
#pragma once

#include <cmath>
#include <vector>

#include "reference/reference.h"
#include "tests/problem_data.h"

namespace flashwok::test {

// `exact`: O in float64. A change of D is the opposite change of dlse, which the oracle takes.
inline reference::BackwardResult BackwardFrom(const Tensor& given_o,
                                              const std::vector<double>& exact,
                                              const Problem& problem, const Tensor& dout,
                                              const Tensor& dlse) {
  const bool varlen = problem.cu_seqlens_q.present();
  const std::int64_t heads = given_o.shape[given_o.rank - 2];
  const std::int64_t head_dim_v = given_o.shape[given_o.rank - 1];
  const std::int64_t batch = varlen ? 1 : given_o.shape[0];
  const std::int64_t seqlen = varlen ? given_o.shape[0] : given_o.shape[1];
  const std::vector<double> o = Read(given_o);
  const std::vector<double> d_o = Read(dout);
  std::vector<double> old(static_cast<std::size_t>(batch * heads * seqlen));
  if (dlse.present()) old = Read(dlse);
  std::vector<float> shifted(old.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < seqlen; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t first = ((b * seqlen + i) * heads + h) * head_dim_v;
        double change = 0.0;
        for (std::int64_t c = first; c < first + head_dim_v; ++c)
          change += d_o[c] * (o[c] - exact[c]);
        const std::int64_t row = (b * heads + h) * seqlen + i;
        shifted[row] = static_cast<float>(old[row] - (std::isfinite(change) ? change : 0.0));
      }
    }
  }
  const Tensor view =
      varlen ? Tensor::Contiguous(shifted.data(), DType::kFloat32, {heads, seqlen})
             : Tensor::Contiguous(shifted.data(), DType::kFloat32, {batch, heads, seqlen});
  return reference::Backward(problem, dout, view);
}

}  // namespace flashwok::test
