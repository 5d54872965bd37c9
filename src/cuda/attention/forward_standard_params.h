// What the kernels of standard attention are given beside ForwardParams.
#pragma once

#include "cuda/attention/params.h"

namespace flashwok::cuda {

struct ForwardStandardParams {
  ForwardParams base;
  std::uint16_t* scores = nullptr;  // [batch, num_heads, seqlen_q, score_stride]: S, then P
  std::int64_t score_stride = 0;    // seqlen_k rounded up to 8
  float* lse = nullptr;             // [batch, num_heads, seqlen_q]
};

}  // namespace flashwok::cuda
