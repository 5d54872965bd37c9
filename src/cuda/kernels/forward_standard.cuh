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

template <DType kType>
struct StandardSoftmax {
  static constexpr int kThreads = 256;
  static constexpr int kWide = 8;  // scores of 16 bytes

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
  Sequence sequence;
  KeyRange seen;
  std::int64_t b, h, i;
  std::uint16_t* scores;

  __device__ __forceinline__ explicit StandardSoftmax(const ForwardStandardParams& params)
      : p(params) {
    const std::int64_t row = blockIdx.x;
    const std::int64_t head = row / p.base.total_q;
    i = row % p.base.total_q;
    b = head / p.base.num_heads;
    h = head % p.base.num_heads;
    sequence = p.base.At(b);
    seen = sequence.mask.Row(i);
    scores = p.scores + row * p.score_stride;
  }

  // visit(first key, the 8 words' scores in log2, -inf where hidden or past the end).
  template <class Visit>
  __device__ __forceinline__ void ForEach(const Visit& visit) const {
    for (std::int64_t j = threadIdx.x * kWide; j < p.score_stride; j += kThreads * kWide) {
      const uint4 words = *reinterpret_cast<const uint4*>(scores + j);
      const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
      float values[kWide];
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        const float product = ptx::Unpack<kType>(pairs[n / 2] >> n % 2 * 16);
        values[n] = j + n >= seen.begin && j + n < seen.end
                        ? FinishScore<kType>(p.base, sequence, b, h, i, j + n, product)
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
    const auto batch_head = static_cast<std::uint32_t>(b * p.base.num_heads + h);
    ForEach([&](std::int64_t j, const float(&values)[kWide]) {
      float weights[kWide];
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        weights[n] = ptx::Exp2(values[n] - safe) * inverse;
        if (p.base.dropout.active()) {
          const bool keep = p.base.dropout.Keep(batch_head, static_cast<std::uint32_t>(i),
                                                static_cast<std::uint32_t>(j + n));
          weights[n] *= keep ? p.base.dropout.keep_scale : 0.0f;
        }
      }
      const auto pack = [&](int n) { return ptx::Pack<kType>(weights[n], weights[n + 1]); };
      *reinterpret_cast<uint4*>(scores + j) = uint4{pack(0), pack(2), pack(4), pack(6)};
    });
    if (threadIdx.x != 0) return;
    const float lse = LogSumExp(total.row_max, total.row_sum);
    p.lse[blockIdx.x] = lse;
    if (p.base.lse) p.base.lse.At(b, h, i) = lse;
  }
};

// One warp a row of O, where hidden keys may have brought a NaN in.
template <DType kType>
__device__ inline void RepairStandardRow(const ForwardStandardParams& p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / 32) + WarpIndex();
  if (row >= p.base.batch * p.base.num_heads * p.base.total_q) return;
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
  RepairRow<kType>(p.base, sequence, b, h, i, KeyRange{0, sequence.seqlen_k}, p.lse[row],
                   [&](int col, float value) {
                     StoreElement<kType>(out, p.base.o.dtype, col, value);
                   });
}

template <DType kType>
__global__ void __launch_bounds__(256) StandardSoftmaxKernel(
    const __grid_constant__ ForwardStandardParams params) {
  StandardSoftmax<kType>(params).Run(
      *reinterpret_cast<ForwardStandardStorage*>(ptx::DynamicShared()));
}

template <DType kType>
__global__ void __launch_bounds__(256) StandardRepairKernel(
    const __grid_constant__ ForwardStandardParams params) {
  RepairStandardRow<kType>(params);
}

}  // namespace flashwok::cuda
