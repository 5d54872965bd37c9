// Joins two partial results over disjoint keys by the algebra of softmax_state.h (Milakov and
// Gimelshein 2018, arXiv:1805.02867), as combine.cuh does the pieces of one call. Bound by memory:
// each element is read once and written once, 16 bytes at a time where the rows allow it. The lanes
// that share a row read its lse before one of them writes the union's: it may be in place.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/softmax_state.h"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/merge_params.h"

namespace flashwok::cuda {

// kWidth: columns of O that a lane takes at once; 8 where the rows are aligned, else 1.
template <int kWidth>
struct MergeRows {
  static constexpr int kWarps = 8;
  static constexpr int kBlocksOfSm =
      5;  // 1,280 threads: enough bytes are under way, and none spill

  // Lanes that share a row: a power of two, which all of a warp are.
  FLASHWOK_HOST_DEVICE static int Lanes(std::int64_t head_dim_v) {
    int lanes = 1;
    while (lanes < 32 && lanes * kWidth < head_dim_v) lanes *= 2;
    return lanes;
  }

  static std::int64_t Blocks(const MergeParams& params) {
    const std::int64_t rows = kWarps * 32 / Lanes(params.head_dim_v);
    const std::int64_t blocks = params.rows / rows + (params.rows % rows != 0 ? 1 : 0);
    return std::min<std::int64_t>(blocks, INT32_MAX);
  }

  template <DType kType>
  __device__ static void Unpack(const uint4& bits, float (&O)[8]) {
    const std::uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      O[2 * n] = ptx::Unpack<kType>(pairs[n]);
      O[2 * n + 1] = ptx::Unpack<kType>(pairs[n] >> 16);
    }
  }

  __device__ static void Load(const char* row, DType dtype, std::int64_t col, float (&O)[8]) {
    if (dtype == DType::kFloat32) {
      const auto* values = reinterpret_cast<const float4*>(row + col * 4);
      const float4 low = values[0], high = values[1];
      O[0] = low.x, O[1] = low.y, O[2] = low.z, O[3] = low.w;
      O[4] = high.x, O[5] = high.y, O[6] = high.z, O[7] = high.w;
    } else {
      const uint4 bits = *reinterpret_cast<const uint4*>(row + col * 2);
      dtype == DType::kBFloat16 ? Unpack<DType::kBFloat16>(bits, O)
                                : Unpack<DType::kFloat16>(bits, O);
    }
  }
  __device__ static void Load(const char* row, DType dtype, std::int64_t col, float (&O)[1]) {
    if (dtype == DType::kFloat32) {
      O[0] = reinterpret_cast<const float*>(row)[col];
    } else {
      const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(row)[col];
      O[0] = dtype == DType::kBFloat16 ? ptx::Unpack<DType::kBFloat16>(bits)
                                       : ptx::Unpack<DType::kFloat16>(bits);
    }
  }

  template <DType kType>
  __device__ static uint4 Pack(const float (&O)[8]) {
    return {ptx::Pack<kType>(O[0], O[1]), ptx::Pack<kType>(O[2], O[3]),
            ptx::Pack<kType>(O[4], O[5]), ptx::Pack<kType>(O[6], O[7])};
  }

  __device__ static void Store(char* row, DType dtype, std::int64_t col, const float (&O)[8]) {
    if (dtype == DType::kFloat32) {
      auto* values = reinterpret_cast<float4*>(row + col * 4);
      values[0] = float4{O[0], O[1], O[2], O[3]};
      values[1] = float4{O[4], O[5], O[6], O[7]};
    } else {
      *reinterpret_cast<uint4*>(row + col * 2) =
          dtype == DType::kBFloat16 ? Pack<DType::kBFloat16>(O) : Pack<DType::kFloat16>(O);
    }
  }
  __device__ static void Store(char* row, DType dtype, std::int64_t col, const float (&O)[1]) {
    StoreElement(row, dtype, col, O[0]);
  }

  // All columns of a row, by the lanes that share it.
  __device__ static void JoinRow(const MergeParams& params, const MergeWeights& weights,
                                 std::int64_t b, std::int64_t i, std::int64_t h, int lanes) {
    const char* row_a = params.o_a.Row(b, i, h);
    const char* row_b = params.o_b.Row(b, i, h);
    char* row = params.o.Row(b, i, h);
    const std::int64_t first = LaneIndex() % lanes * kWidth;
    for (std::int64_t col = first; col < params.head_dim_v; col += lanes * kWidth) {
      float O_a[kWidth] = {}, O_b[kWidth] = {}, O[kWidth];
      if (weights.a != 0.0f) Load(row_a, params.o_a.dtype, col, O_a);
      if (weights.b != 0.0f) Load(row_b, params.o_b.dtype, col, O_b);
#pragma unroll
      for (int n = 0; n < kWidth; ++n) O[n] = weights.Join(O_a[n], O_b[n]);
      Store(row, params.o.dtype, col, O);
    }
  }

  __device__ static void Run(const MergeParams& params) {
    const int lanes = Lanes(params.head_dim_v);
    const int rows = 32 / lanes;  // of a warp
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps * rows;
    std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + WarpIndex()) * rows;
    for (; first < params.rows; first += step) {
      const std::int64_t mine = first + LaneIndex() / lanes;
      const std::int64_t index = mine < params.rows ? mine : params.rows - 1;
      const std::int64_t token = index / params.num_heads;
      const std::int64_t h = index - token * params.num_heads;
      const std::int64_t b = token / params.seqlen_q;
      const std::int64_t i = token - b * params.seqlen_q;
      const MergeWeights weights = Merge(params.lse_a.At(b, h, i), params.lse_b.At(b, h, i));
      __syncwarp();
      if (mine >= params.rows) continue;
      if (LaneIndex() % lanes == 0) params.lse.At(b, h, i) = weights.lse;
      JoinRow(params, weights, b, i, h, lanes);
    }
  }
};

#ifdef __CUDACC__

template <int kWidth>
__global__ void __launch_bounds__(MergeRows<kWidth>::kWarps * 32, MergeRows<kWidth>::kBlocksOfSm)
    MergeStatesKernel(const __grid_constant__ MergeParams params) {
  MergeRows<kWidth>::Run(params);
}

template <int kWidth>
cudaError_t LaunchMergeStates(const MergeParams& params, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(MergeRows<kWidth>::Blocks(params));
  if (blocks == 0) return cudaSuccess;
  MergeParams copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&MergeStatesKernel<kWidth>), dim3(blocks),
                          dim3(MergeRows<kWidth>::kWarps * 32), arguments, 0, stream);
}

cudaError_t LaunchMergeStates(const MergeParams& params, cudaStream_t stream) {
  return params.aligned ? LaunchMergeStates<8>(params, stream)
                        : LaunchMergeStates<1>(params, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
