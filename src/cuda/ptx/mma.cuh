// mma.sync m16n8k16: one warp multiplies 16x16 by 16x8 with float32 accumulation (sm_80).
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

// d += a b. Lane l holds of a the pairs of columns 2 (l % 4) and 8 more, in rows l / 4 and 8 more:
// a[0] (row, col), a[1] (row + 8, col), a[2] (row, col + 8), a[3] (row + 8, col + 8); of b the
// pairs of rows 2 (l % 4) and 8 more in column l / 4; of d columns 2 (l % 4) and the next, d[0] and
// d[1] in row l / 4, d[2] and d[3] in row l / 4 + 8.
template <DType kType>
__device__ __forceinline__ void Mma16816(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  if constexpr (kType == DType::kBFloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace flashwok::cuda::ptx
