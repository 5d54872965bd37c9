// The algebra of online softmax: a partial result over some keys is (row_max, row_sum, O), and two
// of them over disjoint keys join exactly. (Milakov and Gimelshein 2018, arXiv:1805.02867.)
#pragma once

#include <cmath>
#include <limits>

#include "common/host_device.h"

namespace flashwok {

// Weights of two partial results in their union, for results already divided by their sums, and
// the union's lse. An lse of -inf marks a part without keys.
struct MergeWeights {
  float lse;
  float a;
  float b;

  // An element of the union's O. A part of weight 0 may hold anything: 0 is given in its place.
  FLASHWOK_HOST_DEVICE float Join(float O_a, float O_b) const { return a * O_a + b * O_b; }
};

FLASHWOK_HOST_DEVICE inline MergeWeights Merge(float lse_a, float lse_b) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (lse_a == kEmpty && lse_b == kEmpty) return {kEmpty, 0.0f, 0.0f};
  if (lse_b == kEmpty) return {lse_a, 1.0f, 0.0f};
  if (lse_a == kEmpty) return {lse_b, 0.0f, 1.0f};
  const float max = lse_a > lse_b ? lse_a : lse_b;
  const float a = std::exp(lse_a - max);
  const float b = std::exp(lse_b - max);
  const float sum = a + b;
  return {max + std::log(sum), a / sum, b / sum};
}

}  // namespace flashwok
