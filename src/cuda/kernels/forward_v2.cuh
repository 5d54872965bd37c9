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
#include "cuda/tile/copy.cuh"
#include "cuda/tile/gemm.cuh"

namespace flashwok::cuda {

// kPlain: nothing but an interval mask between the product and the softmax, rows aligned to 16
// bytes, and no KV tile on two pages. All else is decided at run time.
template <DType kInput, int kBucket, bool kPlainScores>
struct ForwardV2Traits {
  static constexpr ForwardV2Config kConfig = ForwardV2ConfigFor(kBucket);
  static constexpr DType kType = kInput;
  static constexpr int kHeadDim = kBucket;
  static constexpr bool kPlain = kPlainScores;
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kWarps = kPlain ? kConfig.warps : kConfig.full_warps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kResident = kPlain ? kConfig.blocks : kConfig.full_blocks;  // on an SM
  static constexpr int kBlocks = kTileQ / kWarps / 16;  // of 16 rows, a warp
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
};

template <class Traits>
struct ForwardV2Storage {
  alignas(128) unsigned char Q[Traits::TileQ::kBytes];  // and O on its way out
  alignas(128) unsigned char KV[Traits::kStages][Traits::TileKV::kBytes];
  float lse[Traits::kTileQ];
  QTile tile;
};

enum class KeyTensor : std::uint8_t { kK, kV };

// Brings Q, then K and V of the visited tiles in turns through a ring of kStages tiles: item 2 n is
// K of tile n, item 2 n + 1 is its V. kStages - 1 items are on their way while one is in use.
template <class Traits>
class ForwardV2Loader {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;

  __device__ __forceinline__ ForwardV2Loader(const ForwardParams& params,
                                             ForwardV2Storage<Traits>& storage)
      : params_(params), tile_(storage.tile), ring_(ptx::SharedAddress(storage.KV)) {
    const char* first =
        params.q.Row(tile_.batch, tile_.sequence.q_begin + tile_.row_begin, tile_.head);
    const TileQ Q{ptx::SharedAddress(storage.Q)};
    const TileCopy<TileQ, Traits::kThreads> copy;
    const int cols = static_cast<int>(params.head_dim);
    if (Traits::kPlain || params.aligned) {
      copy.Strided(Q, tile_.rows, cols, first, 0, params.q.row_stride);
    } else {
      copy.Elements(Q, tile_.rows, cols,
                    [&](int row) { return first + row * params.q.row_stride; });
    }
    Prologue<0>();
  }

  // The next item, kTensor of visited tile n, once it is there and all warps are done with the item
  // before, whose place the item kStages - 1 further on takes.
  template <KeyTensor kTensor>
  __device__ __forceinline__ TileKV Acquire(int n) {
    constexpr int kAhead = Traits::kStages - 1 + (kTensor == KeyTensor::kV);
    const Item next = Find<kAhead>(n);
    ptx::CopyAsyncWait<Traits::kStages - 2>();
    __syncthreads();
    Load<kAhead>(next, Stage(stage_));
    stage_ = stage_ == Traits::kStages - 1 ? 0 : stage_ + 1;
    return Stage(stage_);
  }

 private:
  // `rows` rows from number `begin` of those that start at `base`: all keys, or a page of them.
  struct Item {
    int rows = 0;
    unsigned key = 0;
    unsigned begin = 0;
    const char* base = nullptr;
  };

  __device__ __forceinline__ TileKV Stage(int stage) const {
    return {ring_ + static_cast<std::uint32_t>(stage * TileKV::kBytes)};
  }

  template <int kItem>
  __device__ __forceinline__ void Prologue() {
    if constexpr (kItem < Traits::kStages - 1) {
      Load<kItem>(Find<kItem>(0), Stage(kItem));
      Prologue<kItem + 1>();
    }
  }

  template <int kItem>
  __device__ __forceinline__ const RowView& View() const {
    return kItem % 2 == 0 ? params_.k : params_.v;
  }

  // Where key `key` lies. In 32 bits: there are no registers for a division in 64.
  template <int kItem>
  __device__ __forceinline__ void Locate(unsigned key, Item& item) const {
    item.base = kItem % 2 == 0 ? tile_.k : tile_.v;
    item.begin = key;
    if (params_.page_size == 0) return;
    const auto page_size = static_cast<unsigned>(params_.page_size);
    const unsigned slot = key / page_size;
    const IntView pages{params_.page_table.data + tile_.batch * params_.page_batch_stride,
                        params_.page_table.stride};
    item.base = View<kItem>().Row(pages.At(slot, 0, params_.num_pages - 1), 0, tile_.head_kv);
    item.begin = key - slot * page_size;
  }

  // Item 2 n + kItem; one past the last has no rows.
  template <int kItem>
  __device__ __forceinline__ Item Find(int n) const {
    Item item;
    n += kItem / 2;
    if (n < tile_.walk.count) {
      item.key = static_cast<unsigned>(tile_.walk.At(n) * Traits::kTileKV);
      item.rows = Traits::kTileKV;
      const std::int64_t left = tile_.sequence.seqlen_k - item.key;
      // A tile cut short by the end of the keys comes first in the walk.
      if (kItem < 2 && left < Traits::kTileKV) item.rows = static_cast<int>(left);
    }
    Locate<kItem>(item.key, item);
    return item;
  }

  // One group of copies.
  template <int kItem>
  __device__ __forceinline__ void Load(const Item& item, const TileKV& tile) const {
    const TileCopy<TileKV, Traits::kThreads> copy;
    const auto cols = static_cast<int>(kItem % 2 == 0 ? params_.head_dim : params_.head_dim_v);
    const std::int64_t stride = View<kItem>().row_stride;
    const auto row_address = [&](int row) {
      Item own;
      Locate<kItem>(item.key + static_cast<unsigned>(row < item.rows ? row : 0), own);
      return own.base + own.begin * stride;
    };
    if (Traits::kPlain) {
      copy.template Strided<kItem >= 2>(tile, item.rows, cols, item.base, item.begin, stride);
    } else if (params_.aligned) {
      copy.Chunks(tile, item.rows, cols, row_address);
    } else {
      copy.Elements(tile, item.rows, cols, row_address);
    }
    ptx::CopyAsyncCommit();
  }

  const ForwardParams& params_;
  const QTile& tile_;  // in shared memory
  const std::uint32_t ring_;
  int stage_ = Traits::kStages - 1;  // of the item in use
};

// What one warp does with its rows of the Q tile.
template <class Traits>
class ForwardV2 {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;
  using Storage = ForwardV2Storage<Traits>;
  static constexpr DType kType = Traits::kType;
  static constexpr int kWarpRows = 16 * Traits::kBlocks;

  __device__ static void Run(const ForwardParams& params, const Schedule& schedule) {
    if (WarpIndex() == 0) {
      const QTile tile = FindQTile(params, schedule, Traits::kTileQ, Traits::kTileKV);
      if (LaneIndex() == 0) Shared().tile = tile;
    }
    __syncthreads();
    const QTile& tile = Shared().tile;
    if (!tile.exists) return;
    float O[Traits::kBlocks][Traits::kHeadDim / 2] = {};
    RowState state[Traits::kBlocks];
    if (tile.walk.count > 0) Loop(params, tile, state, O);
    unsigned bad = 0;  // rows of this warp with a NaN or an infinity
#pragma unroll
    for (int m = 0; m < Traits::kBlocks; ++m)
      bad |= Finish(params, tile, m, state[m], O[m]) << 16 * m;
    Repair(params, tile, bad);
  }

 private:
  static_assert(Traits::kTileQ % (16 * Traits::kWarps) == 0);
  static_assert(sizeof(Storage) <= 163 * 1024);  // what a block of an sm_80 can have

  __device__ static Storage& Shared() { return *reinterpret_cast<Storage*>(ptx::DynamicShared()); }

  __device__ __forceinline__ static void Loop(const ForwardParams& params, const QTile& tile,
                                              RowState (&state)[Traits::kBlocks],
                                              float (&O)[Traits::kBlocks][Traits::kHeadDim / 2]) {
    using K = BlockReader<TileKV, Walk::kColsFirst>;
    using V = BlockReader<TileKV, Walk::kRowsFirst>;
    const BlockReader<TileQ, Walk::kRowsFirst> Q(TileQ{ptx::SharedAddress(Shared().Q)},
                                                 WarpIndex() * kWarpRows);
    ForwardV2Loader<Traits> loader(params, Shared());
    const float factor = Traits::kPlain ? params.score_factor : 1.0f;
    for (int n = 0; n < tile.walk.count; ++n) {
      float S[Traits::kBlocks][Traits::kTileKV / 2];
      std::uint32_t P[Traits::kBlocks][Traits::kTileKV / 4];
      const K k(loader.template Acquire<KeyTensor::kK>(n), 0);
      ScoreProduct<kType, Traits::kHeadDim>(Q.Here(), k, S);  // S = Q K^T  [kWarpRows, kTileKV]
#pragma unroll
      for (int m = 0; m < Traits::kBlocks; ++m) {
        float alpha[2];
        Scores(params, tile, m, n, S[m]);                                 // mask, bias
        const bool grown = OnlineSoftmax(factor, S[m], state[m], alpha);  // m, P, l
        if (grown) Rescale(alpha, O[m]);                                  // O *= alpha
        if (!Traits::kPlain && params.dropout.active()) DropRows(params, Place(tile, m, n), S[m]);
        PackRows<kType>(S[m], P[m]);
      }
      const V v(loader.template Acquire<KeyTensor::kV>(n), 0);
      ValueProduct<kType>(P, v, O);  // O += P V  [kWarpRows, kHeadDim]
    }
    ptx::CopyAsyncWait<0>();
  }

  __device__ __forceinline__ static ScorePlace Place(const QTile& tile, int m, int n) {
    const int row = ptx::Here(WarpIndex() * kWarpRows + FragmentRow()) + 16 * m;
    return {tile.batch, tile.head, tile.row_begin + row,
            tile.walk.At(n) * std::int64_t{Traits::kTileKV}};
  }

  // Everything between the product and the softmax, for the rows of block m.
  template <int kCount>
  __device__ __forceinline__ static void Scores(const ForwardParams& params, const QTile& tile,
                                                int m, int n, float (&S)[kCount]) {
    const bool masked = n < tile.walk.masked;
    if (!Traits::kPlain) {
      ScoreStage<kType>(params, tile.sequence, Place(tile, m, n), masked, S);
    } else if (masked) {
      HideOutside(TileInterval::Make(tile.sequence.mask, tile.row_begin,
                                     tile.walk.At(n) * std::int64_t{Traits::kTileKV}),
                  WarpIndex() * kWarpRows + 16 * m + FragmentRow(), 0, S);
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

  // Rows of block m: divided by l, to global memory. Returns those that are not finite.
  __device__ __forceinline__ static unsigned Finish(const ForwardParams& params, const QTile& tile,
                                                    int m, const RowState& state,
                                                    float (&O)[Traits::kHeadDim / 2]) {
    const int row0 = WarpIndex() * kWarpRows + 16 * m;
    const Target target{params, tile};
    const auto address = [&](int row) { return target.Row(row0 + row); };
    const BlockTarget<decltype(address)> block{address, target.dtype(),
                                               Traits::kPlain || params.aligned, tile.rows - row0,
                                               static_cast<int>(params.head_dim_v)};
    float lse[2];
    Finalize(state, O, lse);
    StoreBlock<kType>(TileQ{ptx::SharedAddress(Shared().Q)}, row0, O, block);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = FragmentRow() + 8 * r;
      if (FragmentCol() != 0) continue;
      Shared().lse[row0 + row] = lse[r];
      if (row < block.rows) target.StoreLse(row0 + row, lse[r]);
    }
    return Traits::kPlain && tile.walk.masked == 0 ? 0 : RowsNotFinite(O);
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
      const int row = WarpIndex() * kWarpRows + __ffs(static_cast<int>(bad)) - 1;
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

template <class Traits>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream) {
  if (params.batch == 0 || params.total_q == 0) return cudaSuccess;
  Schedule schedule = MakeQTileSchedule(params, Traits::kTileQ);
  const std::uint32_t blocks = schedule.total() * static_cast<std::uint32_t>(params.num_splits);
  if (blocks == 0) return cudaErrorInvalidConfiguration;
  const auto* kernel = reinterpret_cast<const void*>(&ForwardV2Kernel<Traits>);
  constexpr int kBytes = sizeof(ForwardV2Storage<Traits>);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  ForwardParams copy = params;
  void* arguments[] = {&copy, &schedule};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(Traits::kThreads), arguments, kBytes, stream);
}

// For what it needs see instances/forward_v2.h.
template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream) {
  constexpr int kTileKV = ForwardV2ConfigFor(kHeadDim).tile_kv;
  return params.plain() && params.aligned && params.page_size % kTileKV == 0
             ? LaunchForwardV2<ForwardV2Traits<kType, kHeadDim, true>>(params, stream)
             : LaunchForwardV2<ForwardV2Traits<kType, kHeadDim, false>>(params, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
