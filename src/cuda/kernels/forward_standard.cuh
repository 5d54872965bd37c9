// Standard attention: S = Q K^T and O = P V by a library, S and P whole in HBM, and between them
// this softmax. Every score passes through HBM four times: that is what the other kernels spare.
#pragma once

#include <cstdint>

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_standard_params.h"
#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/repair.cuh"

namespace flashwok::cuda {

struct ForwardStandardStorage {
  float row_max[8];
  float row_sum[8];
};

// The row of S that a thread block turns into P.
struct StandardRow {
  static constexpr int kWide = 8;  // scores of 16 bytes

  Sequence sequence;
  KeyRange seen;
  std::int64_t b, h, i;
  std::uint16_t* scores;

  __device__ __forceinline__ explicit StandardRow(const ForwardStandardParams& p) {
    const auto q_rows = static_cast<unsigned>(p.base.total_q);
    const auto num_heads = static_cast<unsigned>(p.base.num_heads);
    const unsigned head = blockIdx.x / q_rows;
    i = blockIdx.x - head * q_rows;
    b = head / num_heads;
    h = head % num_heads;
    sequence = p.base.At(b);
    seen = sequence.mask.Row(i);
    scores = p.scores + std::int64_t{blockIdx.x} * p.score_stride;
  }

  // The 16 bytes from score j on, and whether the row sees the n-th of them.
  __device__ __forceinline__ uint4& At(std::int64_t j) const {
    return *reinterpret_cast<uint4*>(scores + j);
  }
  __device__ __forceinline__ bool Sees(std::int64_t j) const {
    return j >= seen.begin && j < seen.end;
  }
  __device__ __forceinline__ void StoreLse(const ForwardStandardParams& p, float row_max,
                                           float row_sum) const {
    if (threadIdx.x != 0) return;
    const float lse = LogSumExp(row_max, row_sum);
    p.lse[blockIdx.x] = lse;
    if (p.base.lse) p.base.lse.At(b, h, i) = lse;
  }
};

template <DType kType>
__device__ __forceinline__ void UnpackScores(const uint4& words,
                                             float (&values)[StandardRow::kWide]) {
  const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int n = 0; n < StandardRow::kWide; ++n) {
    values[n] = ptx::Unpack<kType>(pairs[n / 2] >> n % 2 * 16);
  }
}

template <DType kType>
__device__ __forceinline__ uint4 PackScores(const float (&values)[StandardRow::kWide]) {
  const auto pack = [&](int n) { return ptx::Pack<kType>(values[n], values[n + 1]); };
  return {pack(0), pack(2), pack(4), pack(6)};
}

// Problems with nothing but an interval mask: the scores stay in registers from the maximum to P,
// so that S is read once and P written once. What the row does not see is not read.
template <DType kType, int kChunks>
struct StandardPlainSoftmax {
  static constexpr int kWide = StandardRow::kWide;

  __device__ __forceinline__ static float WarpMax(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
  }
  __device__ __forceinline__ static float WarpSum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
  }
  __device__ __forceinline__ static std::int64_t Key(int chunk) {
    return (chunk * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWide;
  }

  // Chunk `chunk` of this thread, -inf where hidden or past the end.
  __device__ __forceinline__ static void Load(const StandardRow& row, int chunk,
                                              float (&S)[kWide]) {
    const std::int64_t j = Key(chunk);
    const bool any = j + kWide > row.seen.begin && j < row.seen.end;
    UnpackScores<kType>(any ? row.At(j) : uint4{0, 0, 0, 0}, S);
    if (row.Sees(j) && row.Sees(j + kWide - 1)) return;
#pragma unroll
    for (int n = 0; n < kWide; ++n) S[n] = row.Sees(j + n) ? S[n] : kMinusInf;
  }

  __device__ static void Run(const ForwardStandardParams& p, ForwardStandardStorage& storage) {
    const StandardRow row(p);
    const int warps = static_cast<int>(blockDim.x / 32);
    float S[kChunks][kWide];
    float max = kMinusInf;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) Load(row, c, S[c]);
#pragma unroll
    for (int n = 0; n < kChunks * kWide; ++n) max = fmaxf(max, S[n / kWide][n % kWide]);
    max = WarpMax(max);
    if (LaneIndex() == 0) storage.row_max[WarpIndex()] = max;
    __syncthreads();
    for (int w = 0; w < warps; ++w) max = fmaxf(max, storage.row_max[w]);
    max *= p.base.score_factor;
    const float safe = SafeMax(max);
    float part = 0.0f;
#pragma unroll
    for (int n = 0; n < kChunks * kWide; ++n) {
      float& score = S[n / kWide][n % kWide];
      score = ptx::Exp2(fmaf(score, p.base.score_factor, -safe));
      part += score;
    }
    part = WarpSum(part);
    if (LaneIndex() == 0) storage.row_sum[WarpIndex()] = part;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < warps; ++w) sum += storage.row_sum[w];
    Store(row, p.score_stride, sum == 0.0f ? 0.0f : 1.0f / sum, S);
    row.StoreLse(p, max, sum);
  }

  __device__ __forceinline__ static void Store(const StandardRow& row, std::int64_t score_stride,
                                               float inverse, float (&P)[kChunks][kWide]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < kWide; ++n) P[c][n] *= inverse;
      if (Key(c) < score_stride) row.At(Key(c)) = PackScores<kType>(P[c]);
    }
  }
};

// All problems: S is read twice.
template <DType kType>
struct StandardSoftmax {
  static constexpr int kThreads = 256;
  static constexpr int kWide = StandardRow::kWide;

  // m and l of some of a row's keys.
  struct Part {
    float row_max = kMinusInf;
    float row_sum = 0.0f;

    __device__ __forceinline__ void Join(float other_max, float other_sum) {
      const float high = fmaxf(row_max, other_max);
      const float safe = SafeMax(high);
      row_sum = row_sum * ptx::Exp2(row_max - safe) + other_sum * ptx::Exp2(other_max - safe);
      row_max = high;
    }
  };

  const ForwardStandardParams& p;
  StandardRow row;

  __device__ __forceinline__ explicit StandardSoftmax(const ForwardStandardParams& params)
      : p(params), row(params) {}

  // visit(first key, the 8 words' scores in log2, -inf where hidden or past the end).
  template <class Visit>
  __device__ __forceinline__ void ForEach(const Visit& visit) const {
    for (std::int64_t j = threadIdx.x * kWide; j < p.score_stride; j += kThreads * kWide) {
      float values[kWide];
      UnpackScores<kType>(row.At(j), values);
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        values[n] = row.Sees(j + n) ? FinishScore<kType>(p.base, row.sequence, row.b, row.h, row.i,
                                                         j + n, values[n])
                                    : kMinusInf;
      }
      visit(j, values);
    }
  }

  __device__ __forceinline__ Part Total(ForwardStandardStorage& storage) const {
    Part part;
    ForEach([&](std::int64_t, const float(&values)[kWide]) {
      float high = values[0];
#pragma unroll
      for (int n = 1; n < kWide; ++n) high = fmaxf(high, values[n]);
      const float safe = SafeMax(fmaxf(high, part.row_max));
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kWide; ++n) sum += ptx::Exp2(values[n] - safe);
      part.row_sum = part.row_sum * ptx::Exp2(part.row_max - safe) + sum;
      part.row_max = fmaxf(high, part.row_max);
    });
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      part.Join(__shfl_xor_sync(kAllLanes, part.row_max, step),
                __shfl_xor_sync(kAllLanes, part.row_sum, step));
    }
    if (LaneIndex() == 0) {
      storage.row_max[WarpIndex()] = part.row_max;
      storage.row_sum[WarpIndex()] = part.row_sum;
    }
    __syncthreads();
    Part total;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) total.Join(storage.row_max[w], storage.row_sum[w]);
    return total;
  }

  // S -> P in place, and lse.
  __device__ __forceinline__ void Run(ForwardStandardStorage& storage) const {
    const Part total = Total(storage);
    const float safe = SafeMax(total.row_max);
    const float inverse = total.row_sum == 0.0f ? 0.0f : 1.0f / total.row_sum;
    ForEach([&](std::int64_t j, const float(&values)[kWide]) {
      float weights[kWide];
#pragma unroll
      for (int n = 0; n < kWide; ++n) weights[n] = ptx::Exp2(values[n] - safe) * inverse;
      if (p.base.dropout.active()) Drop(j, weights);
      row.At(j) = PackScores<kType>(weights);
    });
    row.StoreLse(p, total.row_max, total.row_sum);
  }

  __device__ __forceinline__ void Drop(std::int64_t j, float (&weights)[kWide]) const {
    const Dropout& dropout = p.base.dropout;
    const auto batch_head = static_cast<std::uint32_t>(row.b * p.base.num_heads + row.h);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PhiloxCounter words = dropout.Block(batch_head, static_cast<std::uint32_t>(row.i),
                                                static_cast<std::uint32_t>(j / 4 + half));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        weights[4 * half + n] *= words[n] >= dropout.threshold ? dropout.keep_scale : 0.0f;
      }
    }
  }
};

// One warp a row of O, where hidden keys may have brought a NaN in.
template <DType kType>
__device__ inline void RepairStandardRow(const ForwardStandardParams& p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / 32) + WarpIndex();
  if (row >= p.rows()) return;
  const std::int64_t head = row / p.base.total_q;
  const std::int64_t i = row % p.base.total_q;
  const std::int64_t b = head / p.base.num_heads;
  const std::int64_t h = head % p.base.num_heads;
  char* out = p.base.o.Row(b, i, h);
  bool bad = false;
  for (std::int64_t col = LaneIndex(); col < p.base.head_dim_v; col += 32) {
    const float value = p.base.o.dtype == DType::kFloat32
                            ? reinterpret_cast<const float*>(out)[col]
                            : ptx::Unpack<kType>(reinterpret_cast<const std::uint16_t*>(out)[col]);
    bad = bad || value * 0.0f != 0.0f;
  }
  if (!__any_sync(kAllLanes, bad)) return;
  const Sequence sequence = p.base.At(b);
  RepairRow<kType>(
      p.base, sequence, b, h, i, KeyRange{0, sequence.seqlen_k}, p.lse[row],
      [&](int col, float value) { StoreElement<kType>(out, p.base.o.dtype, col, value); });
}

template <DType kType, int kChunks>
__global__ void __launch_bounds__(256)
    StandardPlainSoftmaxKernel(const __grid_constant__ ForwardStandardParams params) {
  StandardPlainSoftmax<kType, kChunks>::Run(
      params, *reinterpret_cast<ForwardStandardStorage*>(ptx::DynamicShared()));
}

template <DType kType>
__global__ void __launch_bounds__(256)
    StandardSoftmaxKernel(const __grid_constant__ ForwardStandardParams params) {
  StandardSoftmax<kType>(params).Run(
      *reinterpret_cast<ForwardStandardStorage*>(ptx::DynamicShared()));
}

template <DType kType>
__global__ void __launch_bounds__(256)
    StandardRepairKernel(const __grid_constant__ ForwardStandardParams params) {
  RepairStandardRow<kType>(params);
}

}  // namespace flashwok::cuda
