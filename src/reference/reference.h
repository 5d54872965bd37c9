// The oracle: attention and its gradients in float64, straight from the definitions and never
// optimised. For problems that Validate has accepted, on the CPU.
#pragma once

#include <vector>

#include "flashwok/attention.h"

namespace flashwok::reference {

// Contiguous, whatever the strides of the inputs. Rows that belong to no sequence stay 0 in o and
// -inf in lse.
struct ForwardResult {
  std::vector<double> o;    // [batch, seqlen_q, num_heads, head_dim_v] or [total_q, ...]
  std::vector<double> lse;  // [batch, num_heads, seqlen_q] or [num_heads, total_q]
};

struct BackwardResult {
  std::vector<double> dq, dk, dv;  // in the shape of q, k, v
  std::vector<double> dbias;       // in the shape of bias; empty without
};

ForwardResult Forward(const Problem& problem);

// `dlse` may be absent. `o`: what D = rowsum(dO * O) is taken from, so that the rounding of the O
// that a kernel is given counts as the input's; absent: its own float64 O. `narrow_d`: that sum in
// float32, all else in float64, which is the least that a kernel rounds.
BackwardResult Backward(const Problem& problem, const Tensor& dout, const Tensor& dlse = {},
                        const Tensor& o = {}, bool narrow_d = false);

}  // namespace flashwok::reference
