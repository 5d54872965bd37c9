// What the kernels of standard attention are given beside ForwardParams.
#pragma once

#include "cuda/attention/params.h"

namespace flashwok::cuda {

struct ForwardStandardParams {
  ForwardParams base;
  std::uint16_t* scores = nullptr;  // [batch, num_heads, seqlen_q, score_stride]: S, then P
  std::int64_t score_stride = 0;    // seqlen_k rounded up to 8
  float* lse = nullptr;             // [batch, num_heads, seqlen_q]

  FLASHWOK_HOST_DEVICE std::int64_t rows() const {
    return base.batch * base.num_heads * base.total_q;
  }
};

// How the thread block of a row holds its scores: each thread `chunks` times 8 of them, 0 where
// they are too many for its registers.
struct StandardRowShape {
  int threads = 256;
  int chunks = 0;

  static StandardRowShape Make(const ForwardStandardParams& p) {
    constexpr std::int64_t kMaxThreads = 256;
    constexpr int kMaxChunks = 8;
    const std::int64_t all = p.score_stride / 8;
    StandardRowShape shape;
    if (!p.base.plain() || all > kMaxThreads * kMaxChunks) return shape;
    shape.threads = static_cast<int>(all < kMaxThreads ? (all + 31) / 32 * 32 : kMaxThreads);
    shape.chunks = 1;
    while (shape.chunks * shape.threads < all) shape.chunks *= 2;
    return shape;
  }
};

}  // namespace flashwok::cuda
