// What the two warps of a V1 team hand each other through shared memory, and how it joins what slow
// memory has of the rows: m and l over each warp's keys, and parts of O, a float4 for each 8
// columns of 16 rows and lane as attention/head_v1.cuh has them.
#pragma once

#include <cstdint>

#include "cuda/attention/online_softmax.cuh"

namespace flashwok::cuda {

// What a row's old O and the products of the two warps are multiplied by, 1 / l included.
struct RowFactors {
  float old[2], mine[2], theirs[2];
};

// m and l of a block of 16 rows over all keys so far: those of slow memory, in `state`, and of the
// two halves of the keys, {m, m 8 rows further, l, l 8 rows further}, of which `half` is this
// warp's.
__device__ __forceinline__ RowFactors MergeRows(const float4& half0, const float4& half1, int half,
                                                RowState& state) {
  const float maxima[2][2] = {{half0.x, half1.x}, {half0.y, half1.y}};
  const float sums[2][2] = {{half0.z, half1.z}, {half0.w, half1.w}};
  RowFactors factors;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float max = fmaxf(state.row_max[r], fmaxf(maxima[r][0], maxima[r][1]));
    const float safe = SafeMax(max);
    const float old = state.row_sum[r] * ptx::Exp2(state.row_max[r] - safe);
    const float alpha0 = ptx::Exp2(maxima[r][0] - safe);
    const float alpha1 = ptx::Exp2(maxima[r][1] - safe);
    const float sum = old + (alpha0 * sums[r][0] + alpha1 * sums[r][1]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    state.row_max[r] = max;
    state.row_sum[r] = sum;
    factors.old[r] = old * inverse;
    factors.mine[r] = (half == 0 ? alpha0 : alpha1) * inverse;
    factors.theirs[r] = (half == 0 ? alpha1 : alpha0) * inverse;
  }
  return factors;
}

// From chunk 0 of some columns of O to their chunk n: kChunks of a block of 16 rows, then the next
// block, kHeadDim columns further.
template <int kHeadDim, int kChunks>
__device__ __forceinline__ constexpr int SlowChunk(int n) {
  return (n / kChunks * (kHeadDim / 8) + n % kChunks) * 32;
}

template <int kHeadDim, int kBlocks, int kChunks>
__device__ __forceinline__ void LoadSlow(const float4* slow, float4 (&O)[kBlocks][kChunks]) {
#pragma unroll
  for (int n = 0; n < kBlocks * kChunks; ++n) {
    O[n / kChunks][n % kChunks] = slow[SlowChunk<kHeadDim, kChunks>(n)];
  }
}

template <int kBlocks, int kCount>
__device__ __forceinline__ void StorePart(const float (&O)[kBlocks][kCount], float4* part) {
  constexpr int kChunks = kCount / 4;
#pragma unroll
  for (int n = 0; n < kBlocks * kChunks; ++n) {
    const float* o = &O[n / kChunks][n % kChunks * 4];
    part[n * 32] = float4{o[0], o[1], o[2], o[3]};
  }
}

// O in slow memory, which was `old`, from this warp's product and the other's part.
template <int kHeadDim, int kBlocks, int kCount>
__device__ __forceinline__ void UpdateSlow(const RowFactors (&factors)[kBlocks],
                                           const float4 (&old)[kBlocks][kCount / 4],
                                           const float (&O)[kBlocks][kCount], const float4* part,
                                           float4* slow) {
  constexpr int kChunks = kCount / 4;
#pragma unroll
  for (int n = 0; n < kBlocks * kChunks; ++n) {
    const RowFactors& f = factors[n / kChunks];
    const auto merge = [&](int r, float was, float mine, float theirs) {
      return fmaf(f.old[r], was, fmaf(f.mine[r], mine, f.theirs[r] * theirs));
    };
    const float* o = &O[n / kChunks][n % kChunks * 4];
    const float4 was = old[n / kChunks][n % kChunks];
    const float4 theirs = part[n * 32];
    slow[SlowChunk<kHeadDim, kChunks>(n)] =
        float4{merge(0, was.x, o[0], theirs.x), merge(0, was.y, o[1], theirs.y),
               merge(1, was.z, o[2], theirs.z), merge(1, was.w, o[3], theirs.w)};
  }
}

}  // namespace flashwok::cuda
