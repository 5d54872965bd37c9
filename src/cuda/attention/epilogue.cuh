// The end of a row block: O / l and lse, and the way of O to global memory, in the output's dtype
// or, of a piece of the keys, as a partial result.
#pragma once

#include <cstdint>

#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/params.h"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Row i of a head among the rows of partial results (split-KV).
FLASHWOK_HOST_DEVICE inline std::int64_t PartialRow(const ForwardParams& params,
                                                    std::int64_t q_begin, std::int64_t b,
                                                    std::int64_t h, std::int64_t i) {
  const std::int64_t head = params.cu_seqlens_q ? h : b * params.num_heads + h;
  return head * params.total_q + q_begin + i;
}
// O /= l once, at the end; returns the rows' lse. Sums the lanes' parts of l.
template <int kCount>
__device__ __forceinline__ void Finalize(const RowState& state, float (&O)[kCount],
                                         float (&lse)[2]) {
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float row_sum = QuadSum(state.row_sum[r]);
    inverse[r] = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
    lse[r] = LogSumExp(state.row_max[r], row_sum);
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) O[n] *= inverse[n % 4 / 2];
}

// lse of a warp's 16 rows from `row` of a sequence, where they exist.
template <class Softmax>
__device__ __forceinline__ void StoreLse(const ForwardParams& params, std::int64_t b,
                                         std::int64_t h, const Sequence& sequence, int row,
                                         const Softmax& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + FragmentRow() + 8 * r;
    if (params.lse && FragmentCol() == 0 && at < sequence.seqlen_q) {
      params.lse.At(b, h, sequence.q_begin + at) = softmax.Lse(r);
    }
  }
}

template <DType kType>
__device__ __forceinline__ void StoreElement(char* row, DType dtype, std::int64_t col,
                                             float value) {
  if (dtype == DType::kFloat32) {
    reinterpret_cast<float*>(row)[col] = value;
  } else {
    reinterpret_cast<std::uint16_t*>(row)[col] =
        static_cast<std::uint16_t>(ptx::Pack<kType>(value, 0.0f));
  }
}

// The rows of one block of 16 in global memory: target(row) is the address of one; of the block's
// 16 the first `rows` exist.
template <class Target>
struct BlockTarget {
  Target target;
  DType dtype;
  bool aligned;  // to 16 bytes
  int rows;
  int cols;
};

// 16 bytes a lane, by way of rows [row0, row0 + 16) of a tile that the warp has to itself.
template <DType kType, class Tile, int kCount, class Target>
__device__ __forceinline__ void StoreChunks(const Tile& tile, int row0, const float (&O)[kCount],
                                            const BlockTarget<Target>& block) {
  const int lane = LaneIndex();
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t pair = ptx::Pack<kType>(O[4 * n + 2 * r], O[4 * n + 2 * r + 1]);
      ptx::StoreShared(
          tile.At(row0 + FragmentRow() + 8 * r, n) + static_cast<std::uint32_t>(lane % 4 * 4),
          pair);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * Tile::kChunks; i += 32) {
    const int row = (i + lane) / Tile::kChunks;
    const int chunk = (i + lane) % Tile::kChunks;
    if (row < block.rows && chunk * 8 < block.cols) {
      *reinterpret_cast<uint4*>(block.target(row) + chunk * 16) =
          ptx::LoadShared16(tile.At(row0 + row, chunk));
    }
  }
}

// Two floats a lane and step: 32 bytes in a row for a quad.
template <int kCount, class Target>
__device__ __forceinline__ void StoreFloats(const float (&O)[kCount],
                                            const BlockTarget<Target>& block) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = FragmentRow() + 8 * r;
    if (row >= block.rows) continue;
    auto* values = reinterpret_cast<float*>(block.target(row)) + FragmentCol();
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      if (8 * n + FragmentCol() < block.cols) {
        *reinterpret_cast<float2*>(values + 8 * n) = float2{O[4 * n + 2 * r], O[4 * n + 2 * r + 1]};
      }
    }
  }
}

template <DType kType, int kCount, class Target>
__device__ __forceinline__ void StoreElements(const float (&O)[kCount],
                                              const BlockTarget<Target>& block) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const int row = FragmentRow() + n % 4 / 2 * 8;
    const int col = FragmentCol() + n / 4 * 8 + n % 2;
    if (row < block.rows && col < block.cols) {
      StoreElement<kType>(block.target(row), block.dtype, col, O[n]);
    }
  }
}

// O of 16 rows, divided by l, to global memory.
template <DType kType, class Tile, int kCount, class Target>
__device__ __forceinline__ void StoreBlock(const Tile& tile, int row0, const float (&O)[kCount],
                                           const BlockTarget<Target>& block) {
  if (!block.aligned) {
    StoreElements<kType>(O, block);
  } else if (block.dtype == DType::kFloat32) {
    StoreFloats(O, block);
  } else {
    StoreChunks<kType>(tile, row0, O, block);
  }
}

}  // namespace flashwok::cuda
