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

__device__ __forceinline__ void StoreElement(char* row, DType dtype, std::int64_t col,
                                             float value) {
  if (dtype == DType::kBFloat16) {
    StoreElement<DType::kBFloat16>(row, dtype, col, value);
  } else {
    StoreElement<DType::kFloat16>(row, dtype, col, value);
  }
}

// The rows of one block of 16 in global memory: target(row) is the address of one; of the block's
// 16 those in [first, rows) exist.
template <class Target>
struct BlockTarget {
  Target target;
  DType dtype;
  bool aligned;  // to 16 bytes
  int rows;
  int cols;
  int first = 0;

  __device__ __forceinline__ bool Exists(int row) const { return first <= row && row < rows; }
};

// 16 bytes a lane: the lanes of a quad exchange what they hold of four column blocks, so that each
// has 16 bytes of one.
template <DType kType, int kCount, class Target>
__device__ __forceinline__ void StoreQuads(const float (&O)[kCount],
                                           const BlockTarget<Target>& block) {
  const int lane = LaneIndex() % 4;
  const auto exchange = [&](std::uint32_t& a, std::uint32_t& b, int step) {
    const bool high = (lane & step) != 0;
    const std::uint32_t got = __shfl_xor_sync(kAllLanes, high ? a : b, step);
    (high ? a : b) = got;
  };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = FragmentRow() + 8 * r;
    char* target = block.Exists(row) ? block.target(row) : nullptr;
#pragma unroll
    for (int n = 0; n < kCount / 4; n += 4) {
      std::uint32_t part[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[i] = ptx::Pack<kType>(O[4 * (n + i) + 2 * r], O[4 * (n + i) + 2 * r + 1]);
      }
      exchange(part[0], part[1], 1);
      exchange(part[2], part[3], 1);
      exchange(part[0], part[2], 2);
      exchange(part[1], part[3], 2);
      const int chunk = n + lane;
      if (target != nullptr && chunk * 8 < block.cols) {
        *reinterpret_cast<uint4*>(target + chunk * 16) = uint4{part[0], part[1], part[2], part[3]};
      }
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
    if (!block.Exists(row)) continue;
    auto* values = reinterpret_cast<float*>(block.target(row)) + FragmentCol();
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      if (8 * n + FragmentCol() < block.cols) {
        *reinterpret_cast<float2*>(values + 8 * n) = float2{O[4 * n + 2 * r], O[4 * n + 2 * r + 1]};
      }
    }
  }
}

// Each element for itself, to rows that may start anywhere.
template <DType kType, int kCount, class Target>
__device__ __forceinline__ void StoreElements(const float (&O)[kCount],
                                              const BlockTarget<Target>& block) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = FragmentRow() + 8 * r;
    if (!block.Exists(row)) continue;
    char* target = block.target(row);
    const auto store = [&](auto* values, const auto& converted) {
      values += FragmentCol();
      const int cols = block.cols - FragmentCol();
#pragma unroll
      for (int n = 2 * r; n < kCount; n += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int col = n / 4 * 8 + e;
          if (col < cols) values[col] = converted(O[n + e]);
        }
      }
    };
    if (block.dtype == DType::kFloat32) {
      store(reinterpret_cast<float*>(target), [](float value) { return value; });
    } else {
      store(reinterpret_cast<std::uint16_t*>(target), [](float value) {
        return static_cast<std::uint16_t>(ptx::Pack<kType>(value, 0.0f));
      });
    }
  }
}

// O of 16 rows, divided by l, to global memory.
template <DType kType, int kCount, class Target>
__device__ __forceinline__ void StoreBlock(const float (&O)[kCount],
                                           const BlockTarget<Target>& block) {
  if (!block.aligned) {
    StoreElements<kType>(O, block);
  } else if (block.dtype == DType::kFloat32) {
    StoreFloats(O, block);
  } else {
    StoreQuads<kType>(O, block);
  }
}

}  // namespace flashwok::cuda
