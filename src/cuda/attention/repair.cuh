// A NaN or infinity in V at a key that a row does not see: its P is 0, but 0 times NaN is NaN in
// the product. A kernel looks for rows of O that are not finite when it is done, and one warp
// computes such a row again, key by key, without the hidden ones. Costs nothing otherwise.
#pragma once

#include <cstdint>

#include "cuda/attention/params.h"
#include "cuda/attention/score_stage.cuh"

namespace flashwok::cuda {

// Whether something not finite stands in a lane's part of each of its two rows.
template <int kCount>
__device__ __forceinline__ void NotFinite(const float (&O)[kCount], bool (&found)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = 0.0f;  // x * 0 is NaN exactly for an infinity or a NaN
#pragma unroll
    for (int n = 2 * r; n < kCount; n += 4) sum = fmaf(O[n + 1], 0.0f, fmaf(O[n], 0.0f, sum));
    found[r] = sum != 0.0f;
  }
}

// One bit a row of a block of 16.
template <int kCount>
__device__ __forceinline__ unsigned RowsNotFinite(const float (&O)[kCount]) {
  bool found[2];
  NotFinite(O, found);
  const unsigned quads[2] = {__ballot_sync(kAllLanes, found[0]),
                             __ballot_sync(kAllLanes, found[1])};
  unsigned rows = 0;
  for (int row = 0; row < 16; ++row) {
    if ((quads[row / 8] >> row % 8 * 4 & 0xFu) != 0) rows |= 1u << row;
  }
  return rows;
}

// The log2 score of row i and key j from their product, -inf where a mask or bias hides the key.
template <DType kType>
__device__ inline float FinishScore(const ForwardParams& params, const Sequence& sequence,
                                    std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
                                    float product) {
  if (params.mask && params.mask.data[params.mask.Offset(b, h, i) + j] == 0) return kMinusInf;
  float score = ScaleAndCap(params, product);
  if (params.bias) AddBias(BiasAt<kType>(params.bias, params.bias.Offset(b, h, i) + j), score);
  if (params.alibi_slopes != nullptr) {
    score += AlibiTerm(params.AlibiSlope(b, h), i + sequence.seqlen_k - sequence.seqlen_q - j);
  }
  return score;
}

// The same from Q and K, -inf also where the interval does not hold the key.
template <DType kType>
__device__ inline float ScoreOf(const ForwardParams& params, const Sequence& sequence,
                                std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const KeyRange seen = sequence.mask.Row(i);
  if (j < seen.begin || j >= seen.end) return kMinusInf;
  const auto* q = reinterpret_cast<const std::uint16_t*>(params.q.Row(b, sequence.q_begin + i, h));
  const auto* k = reinterpret_cast<const std::uint16_t*>(
      params.KeyRow(params.k, b, sequence, j, h / params.group));
  float product = 0.0f;
  for (std::int64_t c = 0; c < params.head_dim; ++c) {
    product = fmaf(ptx::Unpack<kType>(q[c]), ptx::Unpack<kType>(k[c]), product);
  }
  return FinishScore<kType>(params, sequence, b, h, i, j, product);
}

// Row i of O over `keys`, by one warp, from the lse of these keys; store(col, value) takes it. A
// row whose lse is NaN sees one: it is left as it is.
template <DType kType, class Store>
__device__ inline void RepairRow(const ForwardParams& params, const Sequence& sequence,
                                 std::int64_t b, std::int64_t h, std::int64_t i,
                                 const KeyRange& keys, float lse, const Store& store) {
  if (lse != lse) return;
  constexpr int kLanes = 32;
  constexpr int kMaxHeadDim = 256;
  const int lane = LaneIndex();
  const auto batch_head = static_cast<std::uint32_t>(b * params.num_heads + h);
  float O[kMaxHeadDim / kLanes] = {};
  for (std::int64_t first = keys.begin; first < keys.end && lse != kMinusInf; first += kLanes) {
    const std::int64_t j = first + lane;
    const float score = j < keys.end ? ScoreOf<kType>(params, sequence, b, h, i, j) : kMinusInf;
    float weight = ptx::Exp2(fmaf(-lse, kLog2E, score));
    if (params.dropout.active()) {
      const PhiloxCounter words = params.dropout.Block(batch_head, static_cast<std::uint32_t>(i),
                                                       static_cast<std::uint32_t>(j / 4));
      const std::uint32_t pair[2] = {j % 2 == 0 ? words[0] : words[1],
                                     j % 2 == 0 ? words[2] : words[3]};
      const std::uint32_t word = j % 4 < 2 ? pair[0] : pair[1];
      weight *= word >= params.dropout.threshold ? params.dropout.keep_scale : 0.0f;
    }
    unsigned seen = __ballot_sync(kAllLanes, score != kMinusInf);
    for (int n = 0; n < kLanes; ++n) {
      const float P = __shfl_sync(kAllLanes, weight, n);
      if ((seen >> n & 1u) == 0) continue;
      const auto* v = reinterpret_cast<const std::uint16_t*>(
          params.KeyRow(params.v, b, sequence, first + n, h / params.group));
#pragma unroll
      for (int c = 0; c < kMaxHeadDim / kLanes; ++c) {
        const int col = c * kLanes + lane;
        if (col < params.head_dim_v) O[c] = fmaf(P, ptx::Unpack<kType>(v[col]), O[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kMaxHeadDim / kLanes; ++c) {
    const int col = c * kLanes + lane;
    if (col < params.head_dim_v) store(col, O[c]);
  }
}

}  // namespace flashwok::cuda
