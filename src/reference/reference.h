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

// From its own float64 O and lse, not from a kernel's. `dlse` may be absent.
BackwardResult Backward(const Problem& problem, const Tensor& dout, const Tensor& dlse = {});

}  // namespace flashwok::reference
