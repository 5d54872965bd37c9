// The score stage: softcap, bias, ALiBi and masks on 16 rows of scores as a warp holds them, and
// the dropout of P. Scores are in units of log2 when it is done. A masked score becomes -inf by
// selection, so that a NaN in a key that a row does not see leaves no trace.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/params.h"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Where a lane's part of a tile of scores lies.
struct ScorePlace {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;        // of the sequence, this lane's first; the other is 8 further
  std::int64_t key_begin = 0;  // where S begins
};

// Calls visit(r, col, score) for each of a lane's scores: r is 0 or 1, col counts from the tile's
// first key.
template <int kCount, class Visit>
__device__ __forceinline__ void ForEachScore(float (&S)[kCount], const Visit& visit) {
  const int first = FragmentCol();
#pragma unroll
  for (int n = 0; n < kCount; ++n) visit(n % 4 / 2, first + n / 4 * 8 + n % 2, S[n]);
}

// The interval mask on one tile of scores, in 32 bits: row r of the Q tile sees the columns
// [first + r, last + r) of the KV tile, cut to [0, cols).
struct TileInterval {
  int first, last, cols;

  __device__ __forceinline__ static TileInterval Make(const IntervalMask& mask,
                                                      std::int64_t row_begin,
                                                      std::int64_t key_begin) {
    constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond any length
    const std::int64_t center = row_begin + mask.diagonal - key_begin;
    const std::int64_t left = mask.left < kFar ? mask.left : kFar;
    const std::int64_t right = mask.right < kFar ? mask.right : kFar;
    return {Near(center - left), Near(center + right + 1), Near(mask.seqlen_k - key_begin)};
  }

 private:
  // So far from the tile that the difference is none.
  __device__ __forceinline__ static int Near(std::int64_t x) {
    constexpr int kNear = 1 << 30;
    return x < -kNear ? -kNear : x > kNear ? kNear : static_cast<int>(x);
  }
};

// Hides what lies outside the rows' intervals of keys. `row`: this lane's first, in the Q tile;
// `col`: of the KV tile, where S begins.
template <int kCount>
__device__ __forceinline__ void HideOutside(const TileInterval& interval, int row, int col,
                                            float (&S)[kCount]) {
  int first[2], last[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int end = interval.last + row + 8 * r;
    first[r] = interval.first + row + 8 * r - col - FragmentCol();
    last[r] = (end < interval.cols ? end : interval.cols) - col - FragmentCol();
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const int r = n % 4 / 2;
    const int at = n / 4 * 8 + n % 2;
    if (at < first[r] || at >= last[r]) S[n] = kMinusInf;
  }
}

// Of a product of Q and K: the log2 score before anything is added to it.
__device__ __forceinline__ float ScaleAndCap(const ForwardParams& params, float product) {
  const float score = params.score_factor * product;
  return params.softcap_log2 == 0.0f ? score : tanhf(score) * params.softcap_log2;
}

// A bias of -inf hides the key, whatever its score, NaN included.
__device__ __forceinline__ void AddBias(float bias, float& score) {
  score = bias == kMinusInf ? kMinusInf : fmaf(bias, kLog2E, score);
}

template <DType kType>
__device__ __forceinline__ float BiasAt(const ScoreView& bias, std::int64_t offset) {
  if (bias.dtype == DType::kFloat32) return reinterpret_cast<const float*>(bias.data)[offset];
  return ptx::Unpack<kType>(reinterpret_cast<const std::uint16_t*>(bias.data)[offset]);
}

// What is added to a score for the distance between row i and key j.
__device__ __forceinline__ float AlibiTerm(float slope, std::int64_t distance) {
  return -slope * kLog2E * static_cast<float>(distance < 0 ? -distance : distance);
}

// visit(score, offset) for the scores that are in the tensor `view`, where they have the
// offset; those past the lengths have none.
template <int kCount, class Visit>
__device__ __forceinline__ void ForEachIn(const ScoreView& view, const Sequence& sequence,
                                          const ScorePlace& place, float (&S)[kCount],
                                          const Visit& visit) {
  const std::int64_t rows = sequence.seqlen_q - place.row;
  const std::int64_t cols = sequence.seqlen_k - place.key_begin;
  const std::int64_t offset = view.Offset(place.batch, place.head, place.row) + place.key_begin;
  ForEachScore(S, [&](int r, int col, float& score) {
    if (8 * r < rows && col < cols) visit(score, offset + 8 * r * view.strides[2] + col);
  });
}

// Everything between the product and the softmax. `masked`: the interval cuts this tile.
template <DType kType, int kCount>
__device__ __forceinline__ void ScoreStage(const ForwardParams& params, const Sequence& sequence,
                                           const ScorePlace& place, bool masked,
                                           float (&S)[kCount]) {
  ForEachScore(S, [&](int, int, float& score) { score = ScaleAndCap(params, score); });
  if (params.bias) {
    ForEachIn(params.bias, sequence, place, S, [&](float& score, std::int64_t offset) {
      AddBias(BiasAt<kType>(params.bias, offset), score);
    });
  }
  if (params.alibi_slopes != nullptr) {
    const float slope = params.AlibiSlope(place.batch, place.head);
    const std::int64_t distance =
        place.row + sequence.seqlen_k - sequence.seqlen_q - place.key_begin;
    ForEachScore(S, [&](int r, int col, float& score) {
      score += AlibiTerm(slope, distance + 8 * r - col);
    });
  }
  if (params.mask) {
    ForEachIn(params.mask, sequence, place, S, [&](float& score, std::int64_t offset) {
      if (params.mask.data[offset] == 0) score = kMinusInf;
    });
  }
  if (masked) {
    const TileInterval interval = TileInterval::Make(sequence.mask, place.row, place.key_begin);
    HideOutside(interval, 0, 0, S);
  }
}

// Multiplies P by the dropout mask. A Philox block is 4 keys of a row, which two lanes share: the
// even one draws it for the first row and the odd one for the second, and they exchange halves.
template <int kCount>
__device__ __forceinline__ void DropRows(const ForwardParams& params, const ScorePlace& place,
                                         float (&P)[kCount]) {
  const Dropout& dropout = params.dropout;
  const bool odd = LaneIndex() % 2 != 0;
  const auto batch_head = static_cast<std::uint32_t>(place.batch * params.num_heads + place.head);
  const auto row = static_cast<std::uint32_t>(place.row + (odd ? 8 : 0));
  const auto first = static_cast<std::uint32_t>((place.key_begin + FragmentCol()) / 4);
#pragma unroll
  for (int n = 0; n < kCount; n += 4) {
    const PhiloxCounter words =
        dropout.Block(batch_head, row, first + static_cast<std::uint32_t>(n / 2));
    const std::uint32_t mine[2] = {odd ? words[2] : words[0], odd ? words[3] : words[1]};
    const std::uint32_t theirs[2] = {__shfl_xor_sync(kAllLanes, odd ? words[0] : words[2], 1),
                                     __shfl_xor_sync(kAllLanes, odd ? words[1] : words[3], 1)};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t word = (e / 2 != 0) == odd ? mine[e % 2] : theirs[e % 2];
      P[n + e] *= word >= dropout.threshold ? dropout.keep_scale : 0.0f;
    }
  }
}

}  // namespace flashwok::cuda
