// Flash Attention V2 (Dao 2023, Algorithm 1): Q outer, KV inner. Against V1:
//   - a thread block owns a Q tile, not a head: every SM is busy, and O, m, l stay in registers;
//   - O is divided by l once, at the end; the scale of the scores is part of the exponential;
//   - the warps share out the rows of Q, not the keys: none waits for another's O. With few Q tiles
//     several blocks share the keys of a tile (split-KV), and combine.cuh joins their results.
#pragma once

#include <cstdint>

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/online_softmax.cuh"
#include "cuda/attention/params.h"
#include "cuda/attention/q_tile.cuh"
#include "cuda/attention/repair.cuh"
#include "cuda/attention/score_stage.cuh"
#include "cuda/config/forward_v2.h"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/gemm.cuh"

namespace flashwok::cuda {

// kPlain: nothing but an interval mask between the product and the softmax, rows aligned to 16
// bytes, and no KV tile on two pages. All else is decided at run time.
template <DType kInput, ForwardV2Config kConfig, bool kPlainScores>
struct ForwardV2Traits {
  static constexpr DType kType = kInput;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr bool kPlain = kPlainScores;
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kWarps = kPlain ? kConfig.warps : kConfig.full_warps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kResident = kPlain ? kConfig.blocks : kConfig.full_blocks;  // on an SM
  static constexpr int kRows = kTileQ / kWarps;  // of a warp
  static constexpr int kBlocks = kRows / 16;
  static_assert(kTileQ % (16 * kWarps) == 0);
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using WarpQ = SharedTile<kRows, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
};

template <class Traits>
struct ForwardV2Storage {
  alignas(128) unsigned char Q[Traits::TileQ::kBytes];
  alignas(128) unsigned char KV[4][Traits::TileKV::kBytes];  // K, V, K, V
  float lse[Traits::kTileQ];
  ptx::Mbarrier ready[2];  // K, V
  QTile works[4];          // work n is in works[n % 4]
  std::uint32_t round;     // how far NextQTile is
};

enum class KeyTensor : std::uint8_t { kK, kV };

// Brings the thread block's works one after the other: of each, Q, and K and V of its visited tiles
// in turns. Two tiles are on their way while one is in use, those of the next work too.
//
// Warps may drift apart by about one tile: a warp arrives at the barrier of the next tile when it
// has its part of it and is done with the one before this, whose place the one after the next will
// take; only then, with this tile's product between, it waits for the others.
template <class Traits>
class ForwardV2Loader {
 public:
  using WarpQ = typename Traits::WarpQ;
  using TileKV = typename Traits::TileKV;

  __device__ __forceinline__ ForwardV2Loader(const ForwardParams& params,
                                             ForwardV2Storage<Traits>& storage)
      : params_(params), storage_(storage), ring_(ptx::SharedAddress(storage.KV)) {
    if (!Work().exists) return;
    LoadQ(Work());
    Load<KeyTensor::kK>(Find<KeyTensor::kK>(Work(), 0), Stage<KeyTensor::kK>(0));
    ptx::CopyAsyncCommit();
    Load<KeyTensor::kV>(Find<KeyTensor::kV>(Work(), 0), Stage<KeyTensor::kV>(0));
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<1>();
    Arrive<KeyTensor::kK>();
  }

  __device__ __forceinline__ const QTile& Work(unsigned ahead = 0) const {
    return storage_.works[(work() + ahead) % 4];
  }

  // kTensor of visited tile n of the work, once it is there; starts the copies of the tile after
  // it, and with the last V those of the next work's Q, whose place must be free.
  template <KeyTensor kTensor>
  __device__ __forceinline__ TileKV Acquire(int n) {
    constexpr KeyTensor kOther = kTensor == KeyTensor::kK ? KeyTensor::kV : KeyTensor::kK;
    const bool last = n + 1 == Work().walk.count;
    const QTile& tile = Work(last);
    const Item later = Find<kTensor>(tile, last ? 0 : n + 1);
    ptx::MbarrierWait(&storage_.ready[static_cast<int>(kTensor)], place_ % 2);
    Load<kTensor>(later, Stage<kTensor>((place_ + 1) % 2));
    if (kTensor == KeyTensor::kV && last && tile.exists) {
      __syncwarp();
      LoadQ(tile);
    }
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<1>();
    Arrive<kOther>();
    const TileKV now = Stage<kTensor>(place_ % 2);
    if (kTensor == KeyTensor::kV) place_ ^= 1;
    return now;
  }

  __device__ __forceinline__ void NextWork() { place_ += 2; }
  __device__ __forceinline__ unsigned work() const { return place_ / 2; }

 private:
  // `rows` rows from number `begin` of those that start at `base`: all keys, or a page of them.
  struct Item {
    int rows = 0;
    unsigned key = 0;
    unsigned begin = 0;
    const char* base = nullptr;
    const QTile* tile = nullptr;
  };

  template <KeyTensor kTensor>
  __device__ __forceinline__ TileKV Stage(unsigned turn) const {
    const unsigned stage = 2 * turn + static_cast<unsigned>(kTensor);
    return {ring_ + stage * static_cast<std::uint32_t>(TileKV::kBytes)};
  }

  // This warp has its part of the next tile, and is done with the one before this.
  template <KeyTensor kTensor>
  __device__ __forceinline__ void Arrive() const {
    __syncwarp();
    if (LaneIndex() == 0) ptx::MbarrierArrive(&storage_.ready[static_cast<int>(kTensor)]);
  }

  template <KeyTensor kTensor>
  __device__ __forceinline__ const RowView& View() const {
    return kTensor == KeyTensor::kK ? params_.k : params_.v;
  }

  // Where key `key` lies. In 32 bits: there are no registers for a division in 64.
  template <KeyTensor kTensor>
  __device__ __forceinline__ void Locate(const QTile& tile, unsigned key, Item& item) const {
    item.base = kTensor == KeyTensor::kK ? tile.k : tile.v;
    item.begin = key;
    if (params_.page_size == 0 || item.rows <= 0) return;
    const auto page_size = static_cast<unsigned>(params_.page_size);
    const unsigned slot = key / page_size;
    const IntView pages{params_.page_table.data + tile.batch * params_.page_batch_stride,
                        params_.page_table.stride};
    item.base = View<kTensor>().Row(pages.At(slot, 0, params_.num_pages - 1), 0, tile.head_kv);
    item.begin = key - slot * page_size;
  }

  // Of visited tile n; without a work it has no rows.
  template <KeyTensor kTensor>
  __device__ __forceinline__ Item Find(const QTile& tile, int n) const {
    Item item;
    item.tile = &tile;
    if (tile.exists) {
      item.key = static_cast<unsigned>(tile.walk.At(n) * Traits::kTileKV);
      item.rows = static_cast<int>(tile.sequence.seqlen_k - item.key);
    }
    Locate<kTensor>(tile, item.key, item);
    return item;
  }

  // This warp's rows of Q.
  __device__ __forceinline__ void LoadQ(const QTile& tile) const {
    const int row0 = WarpIndex() * Traits::kRows;
    const WarpQ Q{ptx::SharedAddress(storage_.Q) +
                  static_cast<std::uint32_t>(row0 * WarpQ::kRowBytes)};
    const TileCopy<WarpQ, 32> copy(WarpIndex() * 32);
    const char* first =
        params_.q.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + row0, tile.head);
    const auto cols = static_cast<int>(params_.head_dim);
    if (Traits::kPlain || params_.aligned) {
      copy.Strided(Q, tile.rows - row0, cols, first, 0, params_.q.row_stride);
    } else {
      copy.Elements(Q, tile.rows - row0, cols,
                    [&](int row) { return first + row * params_.q.row_stride; });
    }
  }

  template <KeyTensor kTensor>
  __device__ __forceinline__ void Load(const Item& item, const TileKV& tile) const {
    const TileCopy<TileKV, Traits::kThreads> copy;
    const auto cols = static_cast<int>(kTensor == KeyTensor::kK ? params_.head_dim
                                                                : params_.head_dim_v);
    const std::int64_t stride = View<kTensor>().row_stride;
    const auto row_address = [&](int row) {
      Item own;
      own.rows = item.rows;
      Locate<kTensor>(*item.tile, item.key + static_cast<unsigned>(row < item.rows ? row : 0), own);
      return own.base + own.begin * stride;
    };
    if (Traits::kPlain) {
      copy.Strided(tile, item.rows, cols, item.base, item.begin, stride);
    } else if (params_.aligned) {
      copy.Chunks(tile, item.rows, cols, row_address);
    } else {
      copy.Elements(tile, item.rows, cols, row_address);
    }
  }

  const ForwardParams& params_;
  ForwardV2Storage<Traits>& storage_;
  const std::uint32_t ring_;
  unsigned place_ = 0;  // the work, doubled, and which K and V is in use: its barrier's parity
};

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
  ForwardV2<Traits>::Run(params, schedule);
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

template <class Traits>
cudaError_t LaunchForwardV2(const ForwardParams& params, int multiprocessors, cudaStream_t stream) {
  if (params.batch == 0 || params.total_q == 0) return cudaSuccess;
  const std::uint32_t blocks =
      ForwardV2Persists(params) ? static_cast<std::uint32_t>(multiprocessors * Traits::kResident)
                                : UINT32_MAX;
  return LaunchForwardV2<Traits>(params, MakeQTileSchedule(params, Traits::kTileQ), blocks, stream);
}

// For what it needs see instances/forward_v2.h.
template <DType kType, int kRow>
cudaError_t LaunchForwardV2(const ForwardParams& params, int multiprocessors, cudaStream_t stream) {
  constexpr ForwardV2Config kConfig = kForwardV2Configs[kRow];
  return params.plain() && params.aligned && params.page_size % kConfig.tile_kv == 0
             ? LaunchForwardV2<ForwardV2Traits<kType, kConfig, true>>(params, multiprocessors, stream)
             : LaunchForwardV2<ForwardV2Traits<kType, kConfig, false>>(params, multiprocessors, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
