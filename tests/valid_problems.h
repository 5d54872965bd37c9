// Valid problems without data, to be spoiled in one place, and what is expected then.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/validate.h"
#include "flashwok/attention.h"

namespace flashwok::test {

template <class... Extents>
Tensor Shape(DType dtype, Extents... extents) {
  return Tensor::Contiguous(nullptr, dtype, {static_cast<std::int64_t>(extents)...});
}
template <class... Extents>
Tensor Floats(Extents... extents) {
  return Shape(DType::kFloat32, extents...);
}
template <class... Extents>
Tensor Ints(Extents... extents) {
  return Shape(DType::kInt32, extents...);
}
inline Tensor IntData(std::vector<std::int32_t>& values) {
  return Tensor::Contiguous(values.data(), DType::kInt32,
                            {static_cast<std::int64_t>(values.size())});
}

inline Problem Base() {
  Problem p;
  p.q = Floats(2, 65, 4, 32);
  p.k = Floats(2, 70, 2, 32);
  p.v = Floats(2, 70, 2, 48);
  return p;
}
inline Problem Varlen() {
  Problem p;
  p.q = Floats(100, 4, 32);
  p.k = Floats(120, 2, 32);
  p.v = Floats(120, 2, 48);
  p.cu_seqlens_q = Ints(4);
  p.cu_seqlens_k = Ints(4);
  return p;
}
inline Problem Paged() {
  Problem p = Base();
  p.k = Floats(50, 16, 2, 32);
  p.v = Floats(50, 16, 2, 48);
  p.page_table = Ints(2, 5);
  p.seqused_k = Ints(2);
  return p;
}
inline Problem Float8() {
  Problem p = Base();
  p.q.dtype = p.k.dtype = p.v.dtype = DType::kFloat8E4M3;
  return p;
}

using Spoil = std::function<void(Problem&)>;

inline void ExpectRefusal(Problem problem, const Spoil& spoil, const std::string& message,
                          StatusCode code = StatusCode::kInvalidArgument,
                          Pass pass = Pass::kForward) {
  ASSERT_EQ(Validate(problem, pass).message(), "") << "before: " << message;
  spoil(problem);
  const Status status = Validate(problem, pass);
  EXPECT_EQ(status.message(), message);
  EXPECT_EQ(status.code(), code) << message;
}

inline void ExpectValid(const Problem& problem, Pass pass = Pass::kForward) {
  EXPECT_EQ(Validate(problem, pass).message(), "");
}

}  // namespace flashwok::test
