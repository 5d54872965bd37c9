// Flash Attention V2 (Dao 2023, Algorithm 1): Q outer, KV inner. Against V1:
//   - a thread block owns a Q tile, not a head: every SM is busy, and O, m, l stay in registers;
//   - O is divided by l once, at the end; the scale of the scores is part of the exponential;
//   - the warps share out the rows of Q, not the keys: none waits for another's O. With few Q tiles
//     several blocks share the keys of a tile (split-KV), and combine.cuh joins their results.
#pragma once

#include <cstdint>

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v2_loader.cuh"
#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/params.h"
#include "cuda/attention/q_tile.cuh"
#include "cuda/attention/repair.cuh"
#include "cuda/attention/score_stage.cuh"
#include "cuda/config/built.h"
#include "cuda/config/forward_v2_traits.h"
#include "cuda/tile/gemm.cuh"

namespace flashwok::cuda {

// What one warp does with its rows of the Q tiles.
template <class Traits>
class ForwardV2 {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;
  using Storage = ForwardV2Storage<Traits>;
  static constexpr DType kType = Traits::kType;
  static constexpr int kBlocks = Traits::kBlocks;

  __device__ static void Run(const ForwardParams& params, const Schedule& schedule) {
    if (WarpIndex() == 0) {
      if (LaneIndex() == 0) {
        Shared().round = 0;
        for (ptx::Mbarrier& barrier : Shared().ready) ptx::MbarrierInit(&barrier, Traits::kWarps);
      }
      __syncwarp();
#pragma unroll 1
      for (unsigned work = 0; work < 2; ++work) Plan(params, schedule, work);
    }
    __syncthreads();
    ForwardV2Loader<Traits> loader(params, Shared());
    for (; loader.Work().exists; loader.NextWork()) {
      // The others may still be at the work before: they see this when they have come to the next.
      if (WarpIndex() == 0) Plan(params, schedule, loader.work() + 2);
      const QTile& tile = loader.Work();
      float O[kBlocks][Traits::kHeadDim / 2] = {};
      RowState state[kBlocks];
      for (int n = 0; n < tile.walk.count; ++n) Step(params, tile, n, loader, state, O);
      Finish(params, tile, state, O);
    }
    ptx::CopyAsyncWait<0>();
  }

 private:
  static_assert(sizeof(Storage) <= Traits::kSharedKib * 1024);

  __device__ static Storage& Shared() { return *reinterpret_cast<Storage*>(ptx::DynamicShared()); }

  // This warp's first row of the Q tile.
  __device__ __forceinline__ static int FirstRow() { return WarpIndex() * Traits::kRows; }

  __device__ __forceinline__ static void Plan(const ForwardParams& params, const Schedule& schedule,
                                              unsigned work) {
    std::uint32_t round = Shared().round;
    const QTile tile = NextQTile(params, schedule, round, Traits::kTileQ, Traits::kTileKV);
    __syncwarp();
    if (LaneIndex() == 0) {
      Shared().works[work % 4] = tile;
      Shared().round = round;
    }
    __syncwarp();
  }

  __device__ __forceinline__ static void Step(const ForwardParams& params, const QTile& tile, int n,
                                              ForwardV2Loader<Traits>& loader,
                                              RowState (&state)[kBlocks],
                                              float (&O)[kBlocks][Traits::kHeadDim / 2]) {
    using K = BlockReader<TileKV, Walk::kColsFirst>;
    using V = BlockReader<TileKV, Walk::kRowsFirst>;
    const BlockReader<TileQ, Walk::kRowsFirst> Q(TileQ{ptx::SharedAddress(Shared().Q)}, FirstRow());
    const float factor = Traits::kPlain ? params.score_factor : 1.0f;
    float S[kBlocks][Traits::kTileKV / 2];
    std::uint32_t P[kBlocks][Traits::kTileKV / 4];
    const K k(loader.template Acquire<KeyTensor::kK>(n), 0);
    ScoreProduct<kType, Traits::kHeadDim>(Q.Here(), k, S);  // S = Q K^T  [kRows, kTileKV]
    Scores(params, tile, n, S);                             // mask, bias
    OnlineSoftmax(factor, S, state, O);                     // m, P, l; O *= alpha
    Pack(params, tile, n, S, P);
    const V v(loader.template Acquire<KeyTensor::kV>(n), 0);
    ValueProduct<kType>(P, v, O);  // O += P V  [kRows, kHeadDim]
  }

  __device__ __forceinline__ static ScorePlace Place(const QTile& tile, int m, int n) {
    const int row = ptx::Here(FirstRow() + FragmentRow()) + 16 * m;
    return {tile.batch, tile.head, tile.row_begin + row,
            tile.walk.At(n) * std::int64_t{Traits::kTileKV}};
  }

  // Everything between the product and the softmax.
  __device__ __forceinline__ static void Scores(const ForwardParams& params, const QTile& tile,
                                                int n, float (&S)[kBlocks][Traits::kTileKV / 2]) {
    const bool masked = n < tile.walk.masked;
    if (Traits::kPlain && !masked) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      if (!Traits::kPlain) {
        ScoreStage<kType>(params, tile.sequence, Place(tile, m, n), masked, S[m]);
      } else {
        HideOutside(TileInterval::Make(tile.sequence.mask, tile.row_begin,
                                       tile.walk.At(n) * std::int64_t{Traits::kTileKV}),
                    FirstRow() + 16 * m + FragmentRow(), 0, S[m]);
      }
    }
  }

  // The dropout of P, and P as the second product takes it.
  __device__ __forceinline__ static void Pack(const ForwardParams& params, const QTile& tile, int n,
                                              float (&weights)[kBlocks][Traits::kTileKV / 2],
                                              std::uint32_t (&P)[kBlocks][Traits::kTileKV / 4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      if (!Traits::kPlain && params.dropout.active()) {
        DropRows(params, Place(tile, m, n), weights[m]);
      }
      PackRows<kType>(weights[m], P[m]);
    }
  }

  // Where the rows of a tile go: to O, or of a piece of the keys to a partial result.
  struct Target {
    const ForwardParams& params;
    const QTile& tile;
    __device__ __forceinline__ bool whole() const { return params.num_splits == 1; }
    __device__ __forceinline__ DType dtype() const {
      return whole() ? params.o.dtype : DType::kFloat32;
    }
    __device__ __forceinline__ std::int64_t Part(int row) const {
      return tile.split * params.rows() +
             PartialRow(params, tile.sequence.q_begin, tile.batch, tile.head, tile.row_begin + row);
    }
    __device__ __forceinline__ char* Row(int row) const {
      if (!whole()) {
        return reinterpret_cast<char*>(params.partial_o + Part(row) * params.head_dim_v);
      }
      return params.o.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + row, tile.head);
    }
    __device__ __forceinline__ void StoreLse(int row, float lse) const {
      if (!whole()) {
        params.partial_lse[Part(row)] = lse;
      } else if (params.lse) {
        params.lse.At(tile.batch, tile.head, tile.sequence.q_begin + tile.row_begin + row) = lse;
      }
    }
  };

  // O divided by l, to global memory, and lse.
  __device__ __forceinline__ static void Finish(const ForwardParams& params, const QTile& tile,
                                                RowState (&state)[kBlocks],
                                                float (&O)[kBlocks][Traits::kHeadDim / 2]) {
    const Target target{params, tile};
    unsigned bad = 0;  // rows of this warp with a NaN or an infinity
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int row0 = FirstRow() + 16 * m;
      const auto address = [&](int row) { return target.Row(row0 + row); };
      const BlockTarget<decltype(address)> block{address, target.dtype(),
                                                 Traits::kPlain || params.aligned,
                                                 tile.rows - row0,
                                                 static_cast<int>(params.head_dim_v)};
      float lse[2];
      Finalize(state[m], O[m], lse);
      StoreBlock<kType>(O[m], block);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = FragmentRow() + 8 * r;
        if (FragmentCol() != 0) continue;
        Shared().lse[row0 + row] = lse[r];
        if (row < block.rows) target.StoreLse(row0 + row, lse[r]);
      }
      if (!Traits::kPlain || tile.walk.masked > 0) bad |= RowsNotFinite(O[m]) << 16 * m;
    }
    Repair(params, tile, bad);
  }

  // Computes the rows again that a hidden NaN may have come into.
  __device__ __forceinline__ static void Repair(const ForwardParams& params, const QTile& tile,
                                                unsigned bad) {
    KeyRange keys{0, tile.sequence.seqlen_k};
    if (params.num_splits > 1) {
      keys.begin = tile.split * params.chunk;
      keys.end = std::min(keys.end, keys.begin + params.chunk);
    }
    const Target target{params, tile};
    __syncwarp();
    for (; bad != 0; bad &= bad - 1) {
      const int row = FirstRow() + __ffs(static_cast<int>(bad)) - 1;
      if (row >= tile.rows) break;
      RepairRow<kType>(params, tile.sequence, tile.batch, tile.head, tile.row_begin + row, keys,
                       Shared().lse[row], [&](int col, float value) {
                         StoreElement<kType>(target.Row(row), target.dtype(), col, value);
                       });
    }
  }
};

#ifdef __CUDACC__

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kResident)
    ForwardV2Kernel(const __grid_constant__ ForwardParams params,
                    const __grid_constant__ Schedule schedule) {
#if __CUDA_ARCH__ < 900
  constexpr int kMostKib = 163;  // no device of 8.x runs a row that wants more
#else
  constexpr int kMostKib = 227;
#endif
  if constexpr (Traits::kSharedKib <= kMostKib) ForwardV2<Traits>::Run(params, schedule);
}

// By at most `blocks` thread blocks.
template <class Traits>
cudaError_t LaunchForwardV2(const ForwardParams& params, Schedule schedule, std::uint32_t blocks,
                            cudaStream_t stream) {
  const std::uint32_t works = schedule.total() * static_cast<std::uint32_t>(params.num_splits);
  if (works == 0) return cudaErrorInvalidConfiguration;
  const auto* kernel = reinterpret_cast<const void*>(&ForwardV2Kernel<Traits>);
  constexpr int kBytes = sizeof(ForwardV2Storage<Traits>);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  ForwardParams copy = params;
  void* arguments[] = {&copy, &schedule};
  return cudaLaunchKernel(kernel, dim3(std::min(works, blocks)), dim3(Traits::kThreads), arguments,
                          kBytes, stream);
}

// One thread block a Q tile where the tiles are of different lengths: the hardware hands them out
// as blocks become free. Else as many as run at once, each of which brings its next tile's Q, K and
// V while it computes this one.
template <class Traits>
cudaError_t LaunchForwardV2(const ForwardParams& params, int multiprocessors, cudaStream_t stream) {
  if (params.batch == 0 || params.total_q == 0) return cudaSuccess;
  const bool alike = params.causal == Causal::kNone && params.window_left < 0 &&
                     params.window_right < 0 && !params.cu_seqlens_q && !params.seqused_k;
  const std::uint32_t blocks =
      alike ? static_cast<std::uint32_t>(multiprocessors * Traits::kResident) : UINT32_MAX;
  return LaunchForwardV2<Traits>(params, MakeQTileSchedule(params, Traits::kTileQ), blocks, stream);
}

template <DType kType, ForwardV2Config kConfig>
cudaError_t LaunchForwardV2(const ForwardParams& params, int multiprocessors, cudaStream_t stream) {
  using Plain = ForwardV2Traits<kType, kConfig, true>;
  using Full = ForwardV2Traits<kType, kConfig, false>;
  return params.plain() && params.aligned && params.page_size % kConfig.tile_kv == 0
             ? LaunchForwardV2<Plain>(params, multiprocessors, stream)
             : LaunchForwardV2<Full>(params, multiprocessors, stream);
}

template <int kRow>
cudaError_t LaunchForwardV2(DType dtype, const ForwardParams& params, int multiprocessors,
                            cudaStream_t stream) {
  constexpr ForwardV2Config kConfig = kForwardV2Configs[kRow];
  return VisitDType(dtype, [&]<DType kType>() {
    return LaunchForwardV2<kType, kConfig>(params, multiprocessors, stream);
  });
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
