// How close a kernel's results must come to the float64 oracle's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/cases.h"
#include "tests/guarded_memory.h"

namespace flashwok::test {

// max |a - b|; values that are not finite must agree in kind.
inline double MaxError(const std::vector<double>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (std::isfinite(want[i])) {
      const double error = std::abs(got[i] - want[i]);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    } else if (std::isnan(want[i]) ? !std::isnan(got[i]) : got[i] != want[i]) {
      worst = INFINITY;
    }
  }
  return worst;
}

inline double Magnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

// By how much of it a result may move that is rounded to its other neighbour.
inline double HalfUlp(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-9 : dtype == DType::kFloat16 ? 0x1p-12 : 0.0;
}

// The contract's bound: twice the error of the plain computation in the same dtype, plus a floor.
inline void ExpectClose(const char* name, const Tensor& got, const std::vector<double>& want,
                        const std::vector<double>& plain, double floor) {
  const double error = MaxError(Read(got), want);
  const double magnitude = Magnitude(want);
  const double bound = 2.0 * MaxError(plain, want) + HalfUlp(got.dtype) * magnitude +
                       floor * std::max(1.0, magnitude);
  EXPECT_LE(error, bound) << name;
}

inline double Floor(DType dtype) { return dtype == DType::kFloat32 ? 1e-6 : 1e-5; }

// How much larger than those of N(0, 1) inputs a case's scores are, and so their rounding errors.
inline double ScoreSize(const Case& c) {
  const double head_dim = static_cast<double>(c.head_dim);
  const double scale = c.softmax_scale ? std::abs(*c.softmax_scale) * std::sqrt(head_dim) : 1.0;
  return std::max(1.0, scale * c.magnitude * c.magnitude);
}

// Beside the floor, for a kernel that keeps scores in 16 bits. They are rounded before they are
// scaled, in the plain computation also after it: the two have their worst element elsewhere, and
// where a row sees few keys it can be that of one score.
inline double ScoreFloor(const Case& c) {
  return (c.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-10) * ScoreSize(c);
}

}  // namespace flashwok::test
