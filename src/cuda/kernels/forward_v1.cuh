// Flash Attention V1 (Dao et al. 2022, Algorithm 1): KV outer, Q inner. Against standard attention:
//   - S and P exist only as a tile on the SM: slow memory holds O, m and l instead;
//   - online softmax: each pass brings O, m, l of a Q tile in, corrects them, and takes them back,
//     O divided by l every time;
//   - one thread block owns a head. Two warps, a team, share out the keys of a KV tile (split-K):
//     for each Q tile they exchange m and l and half of their O through shared memory. The teams
//     take the Q tiles by turns.
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
#include "cuda/attention/team_v1.cuh"
#include "cuda/config/built.h"
#include "cuda/config/forward_v1.h"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/gemm.cuh"

namespace flashwok::cuda {

// kPlain: nothing but an interval mask between the product and the softmax, and rows aligned to 16
// bytes. All else is decided at run time.
template <DType kInput, ForwardV1Config kRow, bool kPlainScores>
struct ForwardV1Traits {
  static constexpr ForwardV1Config kConfig = kRow;
  static constexpr DType kType = kInput;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr bool kPlain = kPlainScores;
  static constexpr int kTileQ = kPlain ? kConfig.tile_q : kConfig.full_tile_q;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kPieces = kConfig.pieces;
  static constexpr int kThreads = kConfig.warps * 32;
  static constexpr int kTeams = kConfig.warps / 2;
  static constexpr int kBlocks = kTileQ / 16;  // of 16 rows
  static constexpr int kWarpKeys = kTileKV / 2;
  static constexpr int kCols = kHeadDim / 2 / kPieces;  // of O, of a piece
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
};

template <class Traits>
struct ForwardV1Storage {
  static constexpr int kPartBytes = Traits::kTileQ * Traits::kCols * 4;  // of a piece, from a warp
  static constexpr int kSlots = Traits::kStages + (Traits::kPieces == 1 ? 2 : 0);
  alignas(128) unsigned char K[Traits::TileKV::kBytes];
  alignas(128) unsigned char V[Traits::TileKV::kBytes];
  alignas(128) unsigned char Q[Traits::kTeams][kSlots][Traits::TileQ::kBytes];
  float4 rows[Traits::kTeams][2][Traits::kBlocks][8];  // m and l of a warp's keys
  HeadV1<Traits::kHeadDim, Traits::kConfig.tile_q> head;

  // Where the parts of O of a team's warps meet.
  __device__ __forceinline__ float4* Parts(int team, int stage) {
    static_assert(2 * kPartBytes <= Traits::TileQ::kBytes * (Traits::kPieces == 1 ? 2 : 1));
    return reinterpret_cast<float4*>(Q[team][Traits::kPieces == 1 ? Traits::kStages : stage]);
  }
};

template <class Traits>
class ForwardV1 {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;
  using Storage = ForwardV1Storage<Traits>;
  using Head = HeadV1<Traits::kHeadDim, Traits::kConfig.tile_q>;
  static constexpr DType kType = Traits::kType;
  static constexpr int kTileQ = Traits::kTileQ;
  static constexpr int kTileKV = Traits::kTileKV;
  static constexpr int kBlocks = Traits::kBlocks;
  static constexpr int kCols = Traits::kCols;

  __device__ static void Run(const ForwardParams& params) {
    if (threadIdx.x == 0) Shared().head = Head::Find(params);
    __syncthreads();
    const Head& here = Shared().head;
    const Sequence& sequence = here.sequence;
    Reset(params, here);  // O = 0, l = 0, m = -inf
    for (std::int64_t begin = 0; begin < sequence.seqlen_k; begin += kTileKV) {
      const std::int64_t end = std::min(sequence.seqlen_k, begin + kTileKV);
      const RowRange rows = sequence.mask.RowsSeeing({begin, end}, {0, sequence.seqlen_q});
      if (rows.empty()) continue;
      __syncthreads();
      LoadKV(params, here, begin);
      std::int64_t i0 = (rows.begin / kTileQ + Team()) * kTileQ;
      if (i0 < rows.end) LoadQ(params, here, i0, 0);
      if (i0 < rows.end) Prefetch(params, here, i0);
      ptx::CopyAsyncWait<0>();
      __syncthreads();
      for (int stage = 0; i0 < rows.end; i0 += kStride, stage = kLastStage - stage) {
        const bool more = i0 + kStride < rows.end;
        if (more) Prefetch(params, here, i0 + kStride);
        if (kLastStage > 0 && more) LoadQ(params, here, i0 + kStride, kLastStage - stage);
        Step(params, here, i0, begin, stage);
        if (kLastStage == 0 && more) LoadQ(params, here, i0 + kStride, 0);
        ptx::CopyAsyncWait<0>();
        TeamSync();
      }
    }
    __syncthreads();
    WriteResults(params, here);
  }

 private:
  static_assert(Traits::kWarpKeys % 16 == 0 && kTileQ % 16 == 0 && kCols % 16 == 0);
  static_assert(sizeof(Storage) <= Traits::kConfig.shared_kib * 1024);
  static constexpr int kStride = Traits::kTeams * kTileQ;
  static constexpr int kLastStage = Traits::kStages - 1;
  static_assert(kLastStage <= 1 && Traits::kConfig.tile_q % kTileQ == 0);

  __device__ static Storage& Shared() { return *reinterpret_cast<Storage*>(ptx::DynamicShared()); }
  __device__ __forceinline__ static int Team() { return WarpIndex() / 2; }
  // Which of the team's two warps: of the keys and of the columns of O it has this half.
  __device__ __forceinline__ static int Half() { return WarpIndex() % 2; }
  __device__ __forceinline__ static void TeamSync() { ptx::BarrierSync(1 + Team(), 64); }

  template <int kThreads, class Tile>
  __device__ __forceinline__ static void Load(const ForwardParams& params, const Tile& tile,
                                              std::int64_t rows, std::int64_t cols,
                                              const char* first, std::int64_t stride) {
    const TileCopy<Tile, kThreads> copy(static_cast<int>(threadIdx.x) / kThreads * kThreads);
    const int count = static_cast<int>(std::min<std::int64_t>(rows, Tile::kRows));
    if (Traits::kPlain || params.aligned) {
      copy.Strided(tile, count, static_cast<int>(cols), first, 0, stride);
    } else {
      copy.Elements(tile, count, static_cast<int>(cols),
                    [&](int row) { return first + row * stride; });
    }
  }

  __device__ __forceinline__ static void LoadKV(const ForwardParams& params, const Head& here,
                                                std::int64_t begin) {
    const std::int64_t rows = here.sequence.seqlen_k - begin;
    const std::int64_t row = here.sequence.k_begin + begin;
    Load<Traits::kThreads>(params, TileKV{ptx::SharedAddress(Shared().K)}, rows, params.head_dim,
                           params.k.Row(here.batch, row, here.head_kv), params.k.row_stride);
    Load<Traits::kThreads>(params, TileKV{ptx::SharedAddress(Shared().V)}, rows, params.head_dim_v,
                           params.v.Row(here.batch, row, here.head_kv), params.v.row_stride);
    ptx::CopyAsyncCommit();
  }

  // By a team, for itself.
  __device__ __forceinline__ static void LoadQ(const ForwardParams& params, const Head& here,
                                               std::int64_t i0, int stage) {
    Load<64>(params, TileQ{ptx::SharedAddress(Shared().Q[Team()][stage])},
             here.sequence.seqlen_q - i0, params.head_dim,
             params.q.Row(here.batch, here.sequence.q_begin + i0, here.head), params.q.row_stride);
    ptx::CopyAsyncCommit();
  }

  // Has O, and Q if no stage is free for it, brought to L2 a step ahead, which takes no registers.
  __device__ __forceinline__ static void Prefetch(const ForwardParams& params, const Head& here,
                                                  std::int64_t i0) {
    constexpr int kLine = 128;
    constexpr int kQLines = Traits::kHeadDim * 2 / kLine;  // of a row
    const int thread = static_cast<int>(threadIdx.x % 64);
    const char* const slow = reinterpret_cast<const char*>(here.Block(params, i0));
#pragma unroll
    for (int n = 0; n < kTileQ * Traits::kHeadDim * 4; n += 64 * kLine) {
      if (n + thread * kLine < kTileQ * Traits::kHeadDim * 4) {
        ptx::PrefetchL2(slow + n + thread * kLine);
      }
    }
    const int row = thread / kQLines;
    if (kLastStage > 0 || row >= kTileQ || i0 + row >= here.sequence.seqlen_q) return;
    ptx::PrefetchL2(params.q.Row(here.batch, here.sequence.q_begin + i0 + row, here.head) +
                    thread % kQLines * kLine);
  }

  // Q tile at row i0 against the KV tile at key `begin`.
  __device__ __forceinline__ static void Step(const ForwardParams& params, const Head& here,
                                              std::int64_t i0, std::int64_t begin, int stage) {
    const int key0 = Half() * Traits::kWarpKeys;
    const BlockReader<TileQ, Walk::kRowsFirst> Q(
        TileQ{ptx::SharedAddress(Shared().Q[Team()][stage])}, 0);
    const BlockReader<TileKV, Walk::kColsFirst> K(TileKV{ptx::SharedAddress(Shared().K)}, key0);
    const BlockReader<TileKV, Walk::kRowsFirst> V(TileKV{ptx::SharedAddress(Shared().V)}, key0);
    RowState state[kBlocks];
    ForEachRow(params, here, i0, [&](int m, int r, float max, float sum) {
      state[m].row_max[r] = max;
      state[m].row_sum[r] = sum;
    });
    std::uint32_t P[kBlocks][Traits::kWarpKeys / 4];
    {
      float S[kBlocks][Traits::kWarpKeys / 2];
      ScoreProduct<kType, Traits::kHeadDim>(Q, K, S);  // S = Q K^T  [kTileQ, kWarpKeys]
      Softmax(params, here, i0, begin + key0, S, P);   // mask, bias; P, m and l of these keys
    }
    TeamSync();
    RowFactors factors[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {  // m and l of all keys so far
      const auto& rows = Shared().rows[Team()];
      factors[m] =
          MergeRows(rows[0][m][FragmentRow()], rows[1][m][FragmentRow()], Half(), state[m]);
    }
    if (Half() == 0 && FragmentCol() == 0) {
      ForEachRow(params, here, i0, [&](int m, int r, float& max, float& sum) {
        max = state[m].row_max[r];
        sum = state[m].row_sum[r];
      });
    }
    UpdateO(params, here, i0, V, P, factors, Shared().Parts(Team(), stage) + LaneIndex());
  }

  // O = (l_old alpha O + P V) / l: this warp's half of the columns, from its own product and the
  // other warp's, who gets the other half in return.
  template <class ReaderV>
  __device__ __forceinline__ static void UpdateO(
      const ForwardParams& params, const Head& here, std::int64_t i0, const ReaderV& V,
      const std::uint32_t (&P)[kBlocks][Traits::kWarpKeys / 4],
      const RowFactors (&factors)[kBlocks], float4* parts) {
    constexpr int kChunks = Storage::kPartBytes / 16;
#pragma unroll 1
    for (int piece = 0; piece < Traits::kPieces; ++piece) {
      const int mine = (Half() * Traits::kPieces + piece) * kCols;
      const int theirs = mine ^ Traits::kHeadDim / 2;
      float4* const slow = here.O(params, i0, mine);
      float4 old[kBlocks][kCols / 8];
      LoadSlow<Traits::kHeadDim>(slow, old);
      {
        float O[kBlocks][kCols / 2] = {};
        ValueProduct<kType>(P, V.From(theirs / 16), O);  // of this warp's keys  [kTileQ, kCols]
        StorePart(O, parts + Half() * kChunks);
      }
      float O[kBlocks][kCols / 2] = {};
      ValueProduct<kType>(P, V.From(mine / 16), O);
      TeamSync();
      UpdateSlow<Traits::kHeadDim>(factors, old, O, parts + (1 - Half()) * kChunks, slow);
      TeamSync();
    }
  }

  // Scores to P; leaves the rows' m and l over this warp's keys to the team.
  template <int kCount>
  __device__ __forceinline__ static void Softmax(const ForwardParams& params, const Head& here,
                                                 std::int64_t i0, std::int64_t begin,
                                                 float (&S)[kBlocks][kCount],
                                                 std::uint32_t (&P)[kBlocks][kCount / 2]) {
    const std::int64_t rows = std::min<std::int64_t>(here.sequence.seqlen_q - i0, kTileQ);
    const bool masked = VisitedTiles(here.sequence.mask, i0, i0 + rows, Traits::kWarpKeys)
                            .NeedsMask(begin / Traits::kWarpKeys);
    const float factor = Traits::kPlain ? params.score_factor : 1.0f;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const ScorePlace place{here.batch, here.head, i0 + 16 * m + FragmentRow(), begin};
      if constexpr (!Traits::kPlain) {
        ScoreStage<kType>(params, here.sequence, place, masked, S[m]);
      } else if (masked) {
        HideOutside(TileInterval::Make(here.sequence.mask, place.row, begin), 0, 0, S[m]);
      }
      float max[2], safe[2], sum[2];
      RowMax(S[m], max);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        max[r] *= factor;
        safe[r] = SafeMax(max[r]);
      }
      Exp2Rows(factor, safe, S[m], sum);
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[r] = QuadSum(sum[r]);
      if (FragmentCol() == 0) {
        Shared().rows[Team()][Half()][m][FragmentRow()] = {max[0], max[1], sum[0], sum[1]};
      }
      if (!Traits::kPlain && params.dropout.active()) DropRows(params, place, S[m]);
      PackRows<kType>(S[m], P[m]);
    }
  }

  // visit(m, r, row max, row sum) of this lane's rows of the Q tile, those that exist.
  template <class Visit>
  __device__ __forceinline__ static void ForEachRow(const ForwardParams& params, const Head& here,
                                                    std::int64_t i0, const Visit& visit) {
    float* const max = &here.RowMax(params, i0 + FragmentRow());
    float* const sum = &here.RowSum(params, i0 + FragmentRow());
    const std::int64_t left = here.sequence.seqlen_q - i0 - FragmentRow();
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n) {
      if (8 * n < left) {
        visit(n / 2, n % 2, max[8 * n * params.row_max.row_stride],
              sum[8 * n * params.row_sum.row_stride]);
      }
    }
  }

  __device__ static void Reset(const ForwardParams& params, const Head& here) {
    for (std::int64_t n = threadIdx.x; n < here.Chunks(); n += Traits::kThreads) {
      here.Block(params, 0)[n] = float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    for (std::int64_t i = threadIdx.x; i < here.sequence.seqlen_q; i += Traits::kThreads) {
      here.RowMax(params, i) = kMinusInf;
      here.RowSum(params, i) = 0.0f;
    }
  }

  // What slow memory holds at the end, as the caller wants it: O in its dtype, lse, m and l.
  __device__ static void WriteResults(const ForwardParams& params, const Head& here) {
    for (std::int64_t i0 = WarpIndex() * 16; i0 < here.sequence.seqlen_q;
         i0 += Traits::kThreads / 2) {
      WriteRows(params, here, i0);
    }
  }

  // 16 rows by a warp. A row is computed again if a hidden NaN came into it.
  __device__ __forceinline__ static void WriteRows(const ForwardParams& params, const Head& here,
                                                   std::int64_t i0) {
    const Sequence& sequence = here.sequence;
    float O[Traits::kHeadDim / 2];
#pragma unroll
    for (int n = 0; n < Traits::kHeadDim / 8; ++n) {
      const float4 chunk = *here.O(params, i0, 8 * n);
      O[4 * n] = chunk.x, O[4 * n + 1] = chunk.y, O[4 * n + 2] = chunk.z, O[4 * n + 3] = chunk.w;
    }
    const auto address = [&](int row) {
      return params.o.Row(here.batch, sequence.q_begin + i0 + row, here.head);
    };
    const int rows = static_cast<int>(std::min<std::int64_t>(sequence.seqlen_q - i0, 16));
    const BlockTarget<decltype(address)> block{address, params.o.dtype,
                                               Traits::kPlain || params.aligned, rows,
                                               static_cast<int>(params.head_dim_v)};
    StoreBlock<kType>(O, block);
    float lse = kMinusInf;  // of row LaneIndex()
    if (LaneIndex() < rows) {
      const std::int64_t i = i0 + LaneIndex();
      const float max = here.RowMax(params, i);
      lse = LogSumExp(max, here.RowSum(params, i));
      here.RowMax(params, i) = max * kLn2;
      if (params.lse) params.lse.At(here.batch, here.head, sequence.q_begin + i) = lse;
    }
    unsigned bad = RowsNotFinite(O);
    __syncwarp();
    for (; bad != 0; bad &= bad - 1) {
      const int row = __ffs(static_cast<int>(bad)) - 1;
      if (row >= rows) break;
      RepairRow<kType>(params, sequence, here.batch, here.head, i0 + row, {0, sequence.seqlen_k},
                       __shfl_sync(kAllLanes, lse, row), [&](int col, float value) {
                         StoreElement<kType>(address(row), params.o.dtype, col, value);
                       });
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

template <DType kType, ForwardV1Config kConfig>
cudaError_t LaunchForwardV1(const ForwardParams& params, cudaStream_t stream) {
  return params.plain() && params.aligned
             ? LaunchForwardV1<ForwardV1Traits<kType, kConfig, true>>(params, stream)
             : LaunchForwardV1<ForwardV1Traits<kType, kConfig, false>>(params, stream);
}

template <int kRow>
cudaError_t LaunchForwardV1(DType dtype, const ForwardParams& params, cudaStream_t stream) {
  constexpr ForwardV1Config kConfig = kForwardV1Configs[kRow];
  return VisitDType(
      dtype, [&]<DType kType>() { return LaunchForwardV1<kType, kConfig>(params, stream); });
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
