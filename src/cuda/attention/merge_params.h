// What the merge kernel is given: two partial results and their union, as plain data, by value.
#pragma once

#include <cstdint>

#include "common/layout.h"

namespace flashwok::cuda {

struct MergeParams {
  RowView o_a, o_b, o;
  ScalarView lse_a, lse_b, lse;
  std::int64_t seqlen_q = 0, num_heads = 0, head_dim_v = 0;
  std::int64_t rows = 0;  // batch * seqlen_q * num_heads, numbered as o has its axes
  bool aligned = true;    // rows start at multiples of 16 bytes and have a multiple of 8 columns
};

}  // namespace flashwok::cuda
