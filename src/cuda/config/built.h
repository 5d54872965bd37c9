// Which instances of the CUDA kernels a build has: all, unless CMake's FLASHWOK_CUDA_HEAD_DIMS or
// FLASHWOK_CUDA_DTYPES names some. Plan refuses what is left out.
#pragma once

#include "flashwok/tensor.h"

namespace flashwok::cuda {

#ifdef FLASHWOK_CUDA_HEAD_DIMS
inline constexpr unsigned kBuiltHeadDims = FLASHWOK_CUDA_HEAD_DIMS;  // bit n: 32 n
#else
inline constexpr unsigned kBuiltHeadDims = ~0u;
#endif
#ifdef FLASHWOK_CUDA_DTYPES
inline constexpr unsigned kBuiltDTypes = FLASHWOK_CUDA_DTYPES;  // bit n: enumerator n
#else
inline constexpr unsigned kBuiltDTypes = ~0u;
#endif

// `head_dim`: of a row of a kernel's table.
constexpr bool BuiltHeadDim(int head_dim) { return (kBuiltHeadDims >> head_dim / 32 & 1) != 0; }
constexpr bool BuiltDType(DType dtype) {
  return (kBuiltDTypes >> static_cast<unsigned>(dtype) & 1) != 0;
}

// visit.operator()<kType>() of the dtype, float16 or bfloat16, which the build must have.
template <class Visit>
auto VisitDType(DType dtype, const Visit& visit) {
  if constexpr (!BuiltDType(DType::kFloat16)) {
    return visit.template operator()<DType::kBFloat16>();
  } else if constexpr (!BuiltDType(DType::kBFloat16)) {
    return visit.template operator()<DType::kFloat16>();
  } else {
    return dtype == DType::kBFloat16 ? visit.template operator()<DType::kBFloat16>()
                                     : visit.template operator()<DType::kFloat16>();
  }
}

}  // namespace flashwok::cuda
