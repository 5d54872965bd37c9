// Flash Attention V1 (Dao et al. 2022, Algorithm 1): KV outer, Q inner. Against standard attention:
//   - S and P exist only as a tile on the SM: slow memory holds O, m and l instead;
//   - online softmax: each pass brings O, m, l of a Q tile in, corrects them, and takes them back,
//     O divided by l every time;
//   - one thread block owns a head, and its warps share out the keys of a tile: for each Q tile
//   they
//     agree on m, and add up their O, through shared memory.
// O waits in a float32 workspace: in 16 bits it would lose precision at each round trip.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/tile_range.h"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/head_v1.cuh"
#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/params.h"
#include "cuda/attention/repair.cuh"
#include "cuda/attention/score_stage.cuh"
#include "cuda/config/forward_v1.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/gemm.cuh"

namespace flashwok::cuda {

// kPlain: nothing but an interval mask between the product and the softmax, and rows aligned to 16
// bytes. All else is decided at run time.
template <DType kInput, int kBucket, bool kPlainScores>
struct ForwardV1Traits {
  static constexpr ForwardV1Config kConfig = ForwardV1ConfigFor(kBucket);
  static constexpr DType kType = kInput;
  static constexpr int kHeadDim = kBucket;
  static constexpr bool kPlain = kPlainScores;
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kWarps = kConfig.warps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocks = kTileQ / 16;  // of 16 rows
  static constexpr int kWarpKeys = kTileKV / kWarps;
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
};

template <class Traits>
struct ForwardV1Storage {
  static constexpr int kPartLd = Traits::kHeadDim + 8;  // rows of a fragment in different banks
  alignas(128) unsigned char Q[2][Traits::TileQ::kBytes];
  alignas(128) unsigned char K[Traits::TileKV::kBytes];
  alignas(128) unsigned char V[Traits::TileKV::kBytes];
  alignas(16) float O[Traits::kWarps][Traits::kTileQ][kPartLd];  // each warp's part
  float row_max[Traits::kWarps][Traits::kTileQ];                 // of each warp's keys
  float row_sum[Traits::kWarps][Traits::kTileQ];
  float old_max[Traits::kTileQ];  // from slow memory
  float old_sum[Traits::kTileQ];
};

template <class Traits>
class ForwardV1 {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;
  using Storage = ForwardV1Storage<Traits>;
  static constexpr DType kType = Traits::kType;
  static constexpr int kTileQ = Traits::kTileQ;
  static constexpr int kTileKV = Traits::kTileKV;

  __device__ static void Run(const ForwardParams& params) {
    const HeadV1 here = HeadV1::Find(params);
    const Sequence& sequence = here.sequence;
    Reset(params, here);  // O = 0, l = 0, m = -inf
    for (std::int64_t begin = 0; begin < sequence.seqlen_k; begin += kTileKV) {
      const std::int64_t end = std::min(sequence.seqlen_k, begin + kTileKV);
      const RowRange rows = sequence.mask.RowsSeeing({begin, end}, {0, sequence.seqlen_q});
      if (rows.empty()) continue;
      __syncthreads();
      LoadKV(params, here, begin);
      std::int64_t i0 = rows.begin / kTileQ * kTileQ;
      LoadQ(params, here, i0, 0);
      for (int buffer = 0; i0 < rows.end; i0 += kTileQ, buffer ^= 1) {
        ptx::CopyAsyncWait<0>();
        __syncthreads();
        if (i0 + kTileQ < rows.end) LoadQ(params, here, i0 + kTileQ, buffer ^ 1);
        Step(params, here, i0, begin, buffer);
      }
    }
    __syncthreads();
    WriteResults(params, here);
  }

 private:
  static_assert(kTileKV % (16 * Traits::kWarps) == 0 && kTileQ % 16 == 0);
  static_assert(sizeof(Storage) <= 163 * 1024);         // what a block of an sm_80 can have
  static constexpr int kChunks = Traits::kHeadDim / 4;  // of 4 floats, of a row of O
  static constexpr int kOwned = kTileQ * kChunks / Traits::kThreads;  // a thread's, of a tile
  static_assert(kTileQ * kChunks % Traits::kThreads == 0);

  __device__ static Storage& Shared() { return *reinterpret_cast<Storage*>(ptx::DynamicShared()); }

  template <class Tile>
  __device__ __forceinline__ static void Load(const ForwardParams& params, const Tile& tile,
                                              std::int64_t rows, std::int64_t cols,
                                              const char* first, std::int64_t stride) {
    const TileCopy<Tile, Traits::kThreads> copy;
    const int count = static_cast<int>(std::min<std::int64_t>(rows, Tile::kRows));
    if (Traits::kPlain || params.aligned) {
      copy.Strided(tile, count, static_cast<int>(cols), first, 0, stride);
    } else {
      copy.Elements(tile, count, static_cast<int>(cols),
                    [&](int row) { return first + row * stride; });
    }
  }

  __device__ __forceinline__ static void LoadKV(const ForwardParams& params, const HeadV1& here,
                                                std::int64_t begin) {
    const std::int64_t rows = here.sequence.seqlen_k - begin;
    const std::int64_t row = here.sequence.k_begin + begin;
    Load(params, TileKV{ptx::SharedAddress(Shared().K)}, rows, params.head_dim,
         params.k.Row(here.batch, row, here.head_kv), params.k.row_stride);
    Load(params, TileKV{ptx::SharedAddress(Shared().V)}, rows, params.head_dim_v,
         params.v.Row(here.batch, row, here.head_kv), params.v.row_stride);
    ptx::CopyAsyncCommit();
  }

  __device__ __forceinline__ static void LoadQ(const ForwardParams& params, const HeadV1& here,
                                               std::int64_t i0, int buffer) {
    Load(params, TileQ{ptx::SharedAddress(Shared().Q[buffer])}, here.sequence.seqlen_q - i0,
         params.head_dim, params.q.Row(here.batch, here.sequence.q_begin + i0, here.head),
         params.q.row_stride);
    ptx::CopyAsyncCommit();
  }

  // Q tile at row i0 against the KV tile at key `begin`.
  __device__ __forceinline__ static void Step(const ForwardParams& params, const HeadV1& here,
                                              std::int64_t i0, std::int64_t begin, int buffer) {
    const int key0 = WarpIndex() * Traits::kWarpKeys;
    LoadState(params, here, i0);
    const BlockReader<TileQ, Walk::kRowsFirst> Q(TileQ{ptx::SharedAddress(Shared().Q[buffer])}, 0);
    const BlockReader<TileKV, Walk::kColsFirst> K(TileKV{ptx::SharedAddress(Shared().K)}, key0);
    const BlockReader<TileKV, Walk::kRowsFirst> V(TileKV{ptx::SharedAddress(Shared().V)}, key0);
    float S[Traits::kBlocks][Traits::kWarpKeys / 2];
    ScoreProduct<kType, Traits::kHeadDim>(Q, K, S);  // S = Q K^T  [kTileQ, kWarpKeys]
    Scores(params, here, i0, begin, S);              // mask, bias, and their maxima
    __syncthreads();
    std::uint32_t P[Traits::kBlocks][Traits::kWarpKeys / 4];
    Softmax(params, here, i0, begin, S, P);  // m, P and the parts of l
    float O[Traits::kBlocks][Traits::kHeadDim / 2] = {};
    ValueProduct<kType>(P, V, O);  // O = P V, of this warp's keys  [kTileQ, kHeadDim]
    StorePart(O);
    __syncthreads();
    Update(params, here, i0);  // O = (l_old alpha O + P V) / l, m, l
  }

  __device__ __forceinline__ static ScorePlace Place(const HeadV1& here, std::int64_t i0, int m,
                                                     std::int64_t begin) {
    return {here.batch, here.head, i0 + 16 * m + FragmentRow(),
            begin + WarpIndex() * Traits::kWarpKeys};
  }

  template <int kCount>
  __device__ __forceinline__ static void Scores(const ForwardParams& params, const HeadV1& here,
                                                std::int64_t i0, std::int64_t begin,
                                                float (&S)[Traits::kBlocks][kCount]) {
    const std::int64_t rows = std::min<std::int64_t>(here.sequence.seqlen_q - i0, kTileQ);
    const bool masked =
        VisitedTiles(here.sequence.mask, i0, i0 + rows, kTileKV).NeedsMask(begin / kTileKV);
    const float factor = Traits::kPlain ? params.score_factor : 1.0f;
#pragma unroll
    for (int m = 0; m < Traits::kBlocks; ++m) {
      const ScorePlace place = Place(here, i0, m, begin);
      if constexpr (!Traits::kPlain) {
        ScoreStage<kType>(params, here.sequence, place, masked, S[m]);
      } else {
        const auto interval = TileInterval::Make(here.sequence.mask, place.row, place.key_begin);
        if (masked) HideOutside(interval, 0, 0, S[m]);
      }
      float max[2];
      RowMax(S[m], max);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * m + 8 * r + FragmentRow();
        if (FragmentCol() == 0) Shared().row_max[WarpIndex()][row] = factor * max[r];
      }
    }
  }

  // m and l of a row belong to the thread of its number.
  __device__ __forceinline__ static void LoadState(const ForwardParams& params, const HeadV1& here,
                                                   std::int64_t i0) {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kTileQ) return;
    const bool exists = i0 + row < here.sequence.seqlen_q;
    Shared().old_max[row] = exists ? here.RowMax(params, i0 + row) : kMinusInf;
    Shared().old_sum[row] = exists ? here.RowSum(params, i0 + row) : 0.0f;
  }

  // The maximum of a row over all keys so far: the old one and every warp's.
  __device__ __forceinline__ static float NewMax(int row) {
    float max = Shared().old_max[row];
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) max = fmaxf(max, Shared().row_max[w][row]);
    return max;
  }

  template <int kCount>
  __device__ __forceinline__ static void Softmax(const ForwardParams& params, const HeadV1& here,
                                                 std::int64_t i0, std::int64_t begin,
                                                 float (&S)[Traits::kBlocks][kCount],
                                                 std::uint32_t (&P)[Traits::kBlocks][kCount / 2]) {
    const float factor = Traits::kPlain ? params.score_factor : 1.0f;
#pragma unroll
    for (int m = 0; m < Traits::kBlocks; ++m) {
      float max[2], sum[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        max[r] = SafeMax(NewMax(16 * m + 8 * r + FragmentRow()));
      }
      Exp2Rows(factor, max, S[m], sum);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] = QuadSum(sum[r]);
        const int row = 16 * m + 8 * r + FragmentRow();
        if (FragmentCol() == 0) Shared().row_sum[WarpIndex()][row] = sum[r];
      }
      if (!Traits::kPlain && params.dropout.active()) {
        DropRows(params, Place(here, i0, m, begin), S[m]);
      }
      PackRows<kType>(S[m], P[m]);
    }
  }

  __device__ __forceinline__ static void StorePart(
      const float (&O)[Traits::kBlocks][Traits::kHeadDim / 2]) {
#pragma unroll
    for (int m = 0; m < Traits::kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < Traits::kHeadDim / 2; n += 2) {
        const int row = 16 * m + n % 4 / 2 * 8 + FragmentRow();
        const int col = n / 4 * 8 + FragmentCol();
        *reinterpret_cast<float2*>(&Shared().O[WarpIndex()][row][col]) =
            float2{O[m][n], O[m][n + 1]};
      }
    }
  }

  // Row and first column of chunk n of those that a thread owns: in every tile the same, so that it
  // reads from slow memory what it wrote itself.
  __device__ __forceinline__ static int OwnedRow(int n) {
    return (n * Traits::kThreads + static_cast<int>(threadIdx.x)) / kChunks;
  }
  __device__ __forceinline__ static int OwnedCol(int n) {
    return (n * Traits::kThreads + static_cast<int>(threadIdx.x)) % kChunks * 4;
  }

  // One row's step over all warps: the factors of its old O and of the sum of the parts.
  struct RowUpdate {
    float max, sum, old_factor, inverse;

    __device__ __forceinline__ explicit RowUpdate(int row) : max(NewMax(row)) {
      const float alpha = ptx::Exp2(Shared().old_max[row] - SafeMax(max));
      old_factor = Shared().old_sum[row] * alpha;
      sum = old_factor;
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) sum += Shared().row_sum[w][row];
      inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
  };

  __device__ __forceinline__ static void Update(const ForwardParams& params, const HeadV1& here,
                                                std::int64_t i0) {
    const std::int64_t rows = here.sequence.seqlen_q - i0;
#pragma unroll
    for (int n = 0; n < kOwned; ++n) {
      const int row = OwnedRow(n);
      const int col = OwnedCol(n);
      if (row >= rows || col >= params.head_dim_v) continue;
      const RowUpdate update(row);
      auto* const slow = reinterpret_cast<float4*>(here.O(params, i0 + row) + col);
      float4 O = *slow;
      O = {update.old_factor * O.x, update.old_factor * O.y, update.old_factor * O.z,
           update.old_factor * O.w};
#pragma unroll
      for (int w = 0; w < Traits::kWarps; ++w) {
        const float4 part = *reinterpret_cast<const float4*>(&Shared().O[w][row][col]);
        O = {O.x + part.x, O.y + part.y, O.z + part.z, O.w + part.w};
      }
      *slow = {update.inverse * O.x, update.inverse * O.y, update.inverse * O.z,
               update.inverse * O.w};
    }
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kTileQ || row >= rows) return;
    const RowUpdate update(row);
    here.RowMax(params, i0 + row) = update.max;
    here.RowSum(params, i0 + row) = update.sum;
  }

  __device__ static void Reset(const ForwardParams& params, const HeadV1& here) {
    const std::int64_t rows = here.sequence.seqlen_q;
    for (std::int64_t n = threadIdx.x; n < rows * params.head_dim_v; n += Traits::kThreads) {
      here.O(params, 0)[n] = 0.0f;
    }
    for (std::int64_t i = threadIdx.x; i < rows; i += Traits::kThreads) {
      here.RowMax(params, i) = kMinusInf;
      here.RowSum(params, i) = 0.0f;
    }
  }

  // What slow memory holds at the end, as the caller wants it: O in its dtype, lse, m and l.
  __device__ static void WriteResults(const ForwardParams& params, const HeadV1& here) {
    const std::int64_t step = Traits::kWarps * kRowsAtOnce;
    for (std::int64_t i0 = WarpIndex() * kRowsAtOnce; i0 < here.sequence.seqlen_q; i0 += step) {
      WriteRows(params, here, i0);
    }
  }

  // Some rows by a warp; a lane has m and l of one of them. A row is computed again if a hidden NaN
  // came into it.
  static constexpr int kRowsAtOnce = 1024 / Traits::kHeadDim;
  __device__ __forceinline__ static void WriteRows(const ForwardParams& params, const HeadV1& here,
                                                   std::int64_t i0) {
    const Sequence& sequence = here.sequence;
    const std::int64_t left = sequence.seqlen_q - i0;
    const int rows = left < kRowsAtOnce ? static_cast<int>(left) : kRowsAtOnce;
    float O[kRowsAtOnce][Traits::kHeadDim / 32] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int c = 0; c < Traits::kHeadDim / 32; ++c) {
        const int col = 32 * c + LaneIndex();
        if (r < rows && col < params.head_dim_v) O[r][c] = here.O(params, i0 + r)[col];
      }
    }
    float lse = kMinusInf;
    if (LaneIndex() < rows) {
      const std::int64_t i = i0 + LaneIndex();
      const float max = here.RowMax(params, i);
      lse = LogSumExp(max, here.RowSum(params, i));
      here.RowMax(params, i) = max * kLn2;
      if (params.lse) params.lse.At(here.batch, here.head, sequence.q_begin + i) = lse;
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= rows) break;
      char* const target = params.o.Row(here.batch, sequence.q_begin + i0 + r, here.head);
      bool finite = true;
#pragma unroll
      for (int c = 0; c < Traits::kHeadDim / 32; ++c) {
        const int col = 32 * c + LaneIndex();
        finite = finite && O[r][c] * 0.0f == 0.0f;
        if (col < params.head_dim_v) StoreElement<kType>(target, params.o.dtype, col, O[r][c]);
      }
      if (!__all_sync(kAllLanes, finite)) {
        RepairRow<kType>(params, sequence, here.batch, here.head, i0 + r, {0, sequence.seqlen_k},
                         __shfl_sync(kAllLanes, lse, r), [&](int col, float value) {
                           StoreElement<kType>(target, params.o.dtype, col, value);
                         });
      }
    }
  }
};

#ifdef __CUDACC__

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kConfig.blocks)
    ForwardV1Kernel(const __grid_constant__ ForwardParams params) {
  ForwardV1<Traits>::Run(params);
}

template <class Traits>
cudaError_t LaunchForwardV1(const ForwardParams& params, cudaStream_t stream) {
  const std::int64_t blocks = params.batch * params.num_heads;
  if (blocks == 0 || params.total_q == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const auto* kernel = reinterpret_cast<const void*>(&ForwardV1Kernel<Traits>);
  constexpr int kBytes = sizeof(ForwardV1Storage<Traits>);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  ForwardParams copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Traits::kThreads),
                          arguments, kBytes, stream);
}

// For what it needs see instances/forward_v1.h.
template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV1(const ForwardParams& params, cudaStream_t stream) {
  return params.plain() && params.aligned
             ? LaunchForwardV1<ForwardV1Traits<kType, kHeadDim, true>>(params, stream)
             : LaunchForwardV1<ForwardV1Traits<kType, kHeadDim, false>>(params, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
