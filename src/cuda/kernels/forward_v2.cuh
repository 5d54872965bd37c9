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
#include "cuda/attention/shared_rows.cuh"
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
  static constexpr int kStages = kConfig.stages;
  static constexpr Pace kPace = kConfig.pace;
  static constexpr bool kSpread = kConfig.spread;
  static constexpr int kWarps = kConfig.warps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kResident = kConfig.blocks;  // on an SM
  // A warp's part: kShare warps own the same rows.
  static constexpr int kShare = kConfig.share;
  static constexpr int kRows = kTileQ / (kWarps / kShare);
  static constexpr int kBlocks = kRows / 16;
  static constexpr int kKeys = kTileKV / kShare;   // of S
  static constexpr int kCols = kHeadDim / kShare;  // of O
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
  using TileP = SharedTile<kTileQ, kTileKV>;  // where warps that share rows exchange P
  static constexpr int kTurns = kPace == Pace::kDrift ? 2 : 1;  // of them
};

template <class Traits>
struct ForwardV2Storage {
  alignas(128) unsigned char Q[Traits::TileQ::kBytes];  // and O on its way out
  alignas(128) unsigned char KV[Traits::kStages][Traits::TileKV::kBytes];
  alignas(128) unsigned char P[Traits::kShare > 1 ? Traits::kTurns * Traits::TileP::kBytes : 128];
  float rows[Traits::kShare][Traits::kTileQ];  // m or l of the keys of a part; at the end lse
  bool grown[Traits::kTurns * 8];
  ptx::Mbarrier ready[2];  // K and V, where Pace is kDrift
  QTile tile;
};

enum class KeyTensor : std::uint8_t { kK, kV };

// Brings Q, then K and V of the visited tiles in turns through a ring of kStages tiles: item 2 n is
// K of tile n, item 2 n + 1 is its V.
template <class Traits>
class ForwardV2Loader {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;

  __device__ __forceinline__ ForwardV2Loader(const ForwardParams& params,
                                             ForwardV2Storage<Traits>& storage)
      : params_(params), storage_(storage), ring_(ptx::SharedAddress(storage.KV)) {
    const QTile& tile = storage_.tile;
    const char* first = params.q.Row(tile.batch, tile.sequence.q_begin + tile.row_begin, tile.head);
    const TileQ Q{ptx::SharedAddress(storage.Q)};
    const TileCopy<TileQ, Traits::kThreads> copy;
    const int cols = static_cast<int>(params.head_dim);
    if (Traits::kPlain || params.aligned) {
      copy.Strided(Q, tile.rows, cols, first, 0, params.q.row_stride);
    } else {
      copy.Elements(Q, tile.rows, cols, [&](int row) { return first + row * params.q.row_stride; });
    }
    Prologue<0>();
    if constexpr (Traits::kPace == Pace::kDrift) {
      ptx::CopyAsyncWait<kAhead - 1>();
      Arrive(KeyTensor::kK);
    }
  }

  // The next item, kTensor of visited tile n, once it is there; starts the copies of a later one.
  template <KeyTensor kTensor>
  __device__ __forceinline__ TileKV Acquire(int n) {
    constexpr int kItem = kAhead + (kTensor == KeyTensor::kV);
    next_ = Find<kItem>(n);
    if constexpr (Traits::kPace == Pace::kDrift) {
      ptx::MbarrierWait(&storage_.ready[static_cast<int>(kTensor)], static_cast<unsigned>(n) & 1u);
    } else if constexpr (Traits::kPace == Pace::kItem || kTensor == KeyTensor::kK) {
      ptx::CopyAsyncWait<Traits::kPace == Pace::kPair ? kAhead / 2 - 1 : kAhead - 1>();
      __syncthreads();
    }
    stage_ = stage_ == Traits::kStages - 1 ? 0 : stage_ + 1;
    target_ = stage_ + kAhead;
    if (target_ >= Traits::kStages) target_ -= Traits::kStages;
    if constexpr (!Traits::kSpread) {
      Load<kItem>(next_, Stage(target_));
      Commit<kTensor>();
    }
    if constexpr (Traits::kPace == Pace::kDrift) {
      ptx::CopyAsyncWait<kAhead - 1 - Traits::kSpread>();
      Arrive(kTensor == KeyTensor::kK ? KeyTensor::kV : KeyTensor::kK);
    }
    return Stage(stage_);
  }

  // The copies of the later item, where they are spread over the product with this one.
  template <KeyTensor kTensor>
  struct Copies {
    const ForwardV2Loader& loader;
    template <int kSteps>
    __device__ __forceinline__ void Step(int step) const {
      constexpr int kItem = kAhead + (kTensor == KeyTensor::kV);
      if constexpr (Traits::kSpread) {
        const TileCopy<TileKV, Traits::kThreads> copy;
        copy.template Step<kSteps, kItem >= 2>(loader.Stage(loader.target_), step, loader.next_.rows,
                                   loader.template Cols<kItem>(), loader.next_.base,
                                   loader.next_.begin, loader.template View<kItem>().row_stride);
        if (step == kSteps - 1) loader.template Commit<kTensor>();
      }
    }
  };
  template <KeyTensor kTensor>
  __device__ __forceinline__ Copies<kTensor> Later() const {
    return {*this};
  }

 private:
  // How many items further the copies are.
  static constexpr int kAhead = Traits::kStages - (Traits::kPace == Pace::kItem ? 1 : 2);
  static_assert(Traits::kPace != Pace::kPair || Traits::kStages % 2 == 0);

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
    if constexpr (kItem < kAhead) {
      Load<kItem>(Find<kItem>(0), Stage(kItem));
      Commit<kItem % 2 == 0 ? KeyTensor::kK : KeyTensor::kV>();
      Prologue<kItem + 1>();
    }
  }

  // One group of copies: an item, or K and its V.
  template <KeyTensor kTensor>
  __device__ __forceinline__ void Commit() const {
    if constexpr (Traits::kPace != Pace::kPair || kTensor == KeyTensor::kV) {
      ptx::CopyAsyncCommit();
    }
  }

  // This warp has its part of the next item, and is done with the one before last.
  __device__ __forceinline__ void Arrive(KeyTensor tensor) const {
    __syncwarp();
    if (LaneIndex() == 0) ptx::MbarrierArrive(&storage_.ready[static_cast<int>(tensor)]);
  }

  template <int kItem>
  __device__ __forceinline__ const RowView& View() const {
    return kItem % 2 == 0 ? params_.k : params_.v;
  }
  template <int kItem>
  __device__ __forceinline__ int Cols() const {
    return static_cast<int>(kItem % 2 == 0 ? params_.head_dim : params_.head_dim_v);
  }

  // Where key `key` lies. In 32 bits: there are no registers for a division in 64.
  template <int kItem>
  __device__ __forceinline__ void Locate(unsigned key, Item& item) const {
    const QTile& tile = storage_.tile;
    item.base = kItem % 2 == 0 ? tile.k : tile.v;
    item.begin = key;
    if (params_.page_size == 0) return;
    const auto page_size = static_cast<unsigned>(params_.page_size);
    const unsigned slot = key / page_size;
    const IntView pages{params_.page_table.data + tile.batch * params_.page_batch_stride,
                        params_.page_table.stride};
    item.base = View<kItem>().Row(pages.At(slot, 0, params_.num_pages - 1), 0, tile.head_kv);
    item.begin = key - slot * page_size;
  }

  // Item 2 n + kItem; one past the last has no rows.
  template <int kItem>
  __device__ __forceinline__ Item Find(int n) const {
    const QTile& tile = storage_.tile;
    Item item;
    n += kItem / 2;
    if (n < tile.walk.count) {
      item.key = static_cast<unsigned>(tile.walk.At(n) * Traits::kTileKV);
      item.rows = Traits::kTileKV;
      const std::int64_t left = tile.sequence.seqlen_k - item.key;
      // A tile cut short by the end of the keys comes first in the walk.
      if (kItem < 2 && left < Traits::kTileKV) item.rows = static_cast<int>(left);
    }
    Locate<kItem>(item.key, item);
    return item;
  }

  template <int kItem>
  __device__ __forceinline__ void Load(const Item& item, const TileKV& tile) const {
    const TileCopy<TileKV, Traits::kThreads> copy;
    const int cols = Cols<kItem>();
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
  }

  const ForwardParams& params_;
  ForwardV2Storage<Traits>& storage_;
  const std::uint32_t ring_;
  int stage_ = Traits::kStages - 1;  // of the item in use
  int target_ = 0;                   // of the later one
  Item next_;
};

// What one warp does with its rows of the Q tile.
template <class Traits>
class ForwardV2 {
 public:
  using TileQ = typename Traits::TileQ;
  using TileKV = typename Traits::TileKV;
  using Storage = ForwardV2Storage<Traits>;
  static constexpr DType kType = Traits::kType;
  static constexpr int kBlocks = Traits::kBlocks;
  static constexpr int kShare = Traits::kShare;

  __device__ static void Run(const ForwardParams& params, const Schedule& schedule) {
    if (WarpIndex() == 0) {
      const QTile tile = FindQTile(params, schedule, Traits::kTileQ, Traits::kTileKV);
      if (LaneIndex() == 0) {
        Shared().tile = tile;
        if constexpr (Traits::kPace == Pace::kDrift) {
          for (ptx::Mbarrier& barrier : Shared().ready) {
            ptx::MbarrierInit(&barrier, Traits::kWarps);
          }
        }
      }
    }
    __syncthreads();
    const QTile& tile = Shared().tile;
    if (!tile.exists) return;
    float O[kBlocks][Traits::kCols / 2] = {};
    RowState state[kBlocks];
    if (tile.walk.count > 0) Loop(params, tile, state, O);
    Finish(params, tile, state, O);
  }

 private:
  using Common = RowsInCommon<typename Traits::TileP, Traits::kRows, Traits::kKeys, Traits::kTurns>;
  static_assert(Traits::kTileQ % (16 * Traits::kWarps / kShare) == 0);

  __device__ static Storage& Shared() { return *reinterpret_cast<Storage*>(ptx::DynamicShared()); }
  __device__ __forceinline__ static Common InCommon() {
    return Common(Shared().P, Shared().rows[0], Shared().grown);
  }
  // This warp's first row of the Q tile.
  __device__ __forceinline__ static int FirstRow() { return WarpGroup<kShare>() * Traits::kRows; }

  __device__ __forceinline__ static void Loop(const ForwardParams& params, const QTile& tile,
                                              RowState (&state)[kBlocks],
                                              float (&O)[kBlocks][Traits::kCols / 2]) {
    using K = BlockReader<TileKV, Walk::kColsFirst>;
    const BlockReader<TileQ, Walk::kRowsFirst> Q(TileQ{ptx::SharedAddress(Shared().Q)},
                                                 FirstRow());
    ForwardV2Loader<Traits> loader(params, Shared());
    for (int n = 0; n < tile.walk.count; ++n) {
      float S[kBlocks][Traits::kKeys / 2];
      const K k(loader.template Acquire<KeyTensor::kK>(n), WarpPart<kShare>() * Traits::kKeys);
      ScoreProduct<kType, Traits::kHeadDim>(Q.Here(), k, S,  // S = Q K^T  [kRows, kKeys]
                                            loader.template Later<KeyTensor::kK>());
      Scores(params, tile, n, S);  // mask, bias
      if constexpr (kShare == 1) {
        Alone(params, tile, n, loader, S, state, O);
      } else {
        Together(params, tile, n, loader, S, state, O);
      }
    }
    ptx::CopyAsyncWait<0>();
  }

  // The softmax and the second product of a warp that has its rows to itself.
  __device__ __forceinline__ static void Alone(const ForwardParams& params, const QTile& tile,
                                               int n, ForwardV2Loader<Traits>& loader,
                                               float (&S)[kBlocks][Traits::kKeys / 2],
                                               RowState (&state)[kBlocks],
                                               float (&O)[kBlocks][Traits::kCols / 2]) {
    using V = BlockReader<TileKV, Walk::kRowsFirst>;
    std::uint32_t P[kBlocks][Traits::kKeys / 4];
    OnlineSoftmax(Factor(params), S, state, O);  // m, P, l; O *= alpha
    Pack(params, tile, n, S, P);
    const V v(loader.template Acquire<KeyTensor::kV>(n), 0);
    ValueProduct<kType>(P, v, O, loader.template Later<KeyTensor::kV>());  // O += P V
  }

  // Of two warps that share their rows. P is computed against the old m; should a row's have to be
  // raised, in either warp, both do it again.
  __device__ __forceinline__ static void Together(const ForwardParams& params, const QTile& tile,
                                                  int n, ForwardV2Loader<Traits>& loader,
                                                  float (&S)[kBlocks][Traits::kKeys / 2],
                                                  RowState (&state)[kBlocks],
                                                  float (&O)[kBlocks][Traits::kCols / 2]) {
    using V = BlockReader<TileKV, Walk::kRowsFirst>;
    const Common common = InCommon();
    std::uint32_t P[kBlocks][Traits::kKeys / 4];
    float sum[kBlocks][2];
    Weights(params, tile, n, S, state, P, sum);
    common.Offer(P, MayGrow(Factor(params), S, state), n);
    const TileKV value = loader.template Acquire<KeyTensor::kV>(n);
    if constexpr (Traits::kPace != Pace::kItem) Common::Sync();
    if (common.Grown(n)) {
      RaiseTogether(params, S, state, O);
      Weights(params, tile, n, S, state, P, sum);
      common.Offer(P, false, n);
      Common::Sync();
    }
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) state[i / 2].row_sum[i % 2] += sum[i / 2][i % 2];
    const int part = WarpPart<kShare>();
    const PartReader<kShare, V> mine(V(value, part * Traits::kKeys));
    ValueProduct<kType>(P, mine, O, loader.template Later<KeyTensor::kV>());
    common.Take(P, n);
    const PartReader<kShare, V> theirs(V(value, (1 - part) * Traits::kKeys));
    ValueProduct<kType>(P, theirs, O);
  }

  __device__ __forceinline__ static void RaiseTogether(const ForwardParams& params,
                                                       const float (&S)[kBlocks][Traits::kKeys / 2],
                                                       RowState (&state)[kBlocks],
                                                       float (&O)[kBlocks][Traits::kCols / 2]) {
    float max[kBlocks][2], alpha[2];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) RowMax(S[m], max[m]);
    InCommon().Join(max, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (float& row : max[m]) row *= Factor(params);
      Raise(max[m], state[m], alpha);
      Rescale(alpha, O[m]);
    }
  }

  // P of S, which stays, and what it adds to l.
  __device__ __forceinline__ static void Weights(const ForwardParams& params, const QTile& tile,
                                                 int n, const float (&S)[kBlocks][Traits::kKeys / 2],
                                                 const RowState (&state)[kBlocks],
                                                 std::uint32_t (&P)[kBlocks][Traits::kKeys / 4],
                                                 float (&sum)[kBlocks][2]) {
    float weights[kBlocks][Traits::kKeys / 2];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < Traits::kKeys / 2; ++i) weights[m][i] = S[m][i];
      Exponentials(Factor(params), state[m], weights[m], sum[m]);
    }
    Pack(params, tile, n, weights, P);
  }

  // What makes a log2 score of what Scores leaves.
  __device__ __forceinline__ static float Factor(const ForwardParams& params) {
    return Traits::kPlain ? params.score_factor : 1.0f;
  }

  __device__ __forceinline__ static ScorePlace Place(const QTile& tile, int m, int n) {
    const int row = ptx::Here(FirstRow() + FragmentRow()) + 16 * m;
    return {tile.batch, tile.head, tile.row_begin + row,
            tile.walk.At(n) * std::int64_t{Traits::kTileKV} + WarpPart<kShare>() * Traits::kKeys};
  }

  // Everything between the product and the softmax.
  __device__ __forceinline__ static void Scores(const ForwardParams& params, const QTile& tile,
                                                int n, float (&S)[kBlocks][Traits::kKeys / 2]) {
    const bool masked = n < tile.walk.masked;
    if (Traits::kPlain && !masked) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      if (!Traits::kPlain) {
        ScoreStage<kType>(params, tile.sequence, Place(tile, m, n), masked, S[m]);
      } else {
        HideOutside(TileInterval::Make(tile.sequence.mask, tile.row_begin,
                                       tile.walk.At(n) * std::int64_t{Traits::kTileKV}),
                    FirstRow() + 16 * m + FragmentRow(), WarpPart<kShare>() * Traits::kKeys, S[m]);
      }
    }
  }

  // The dropout of P, and P as the second product takes it.
  __device__ __forceinline__ static void Pack(const ForwardParams& params, const QTile& tile, int n,
                                              float (&weights)[kBlocks][Traits::kKeys / 2],
                                              std::uint32_t (&P)[kBlocks][Traits::kKeys / 4]) {
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
                                                float (&O)[kBlocks][Traits::kCols / 2]) {
    const Target target{params, tile};
    float row_sum[kBlocks][2];
    unsigned bad = 0;  // rows of this warp with a NaN or an infinity
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n) row_sum[n / 2][n % 2] = QuadSum(state[n / 2].row_sum[n % 2]);
    if constexpr (kShare == 2) {
      InCommon().Join(row_sum, [](float a, float b) { return a + b; });
      Common::Sync();  // both have read
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int row0 = FirstRow() + 16 * m;
      const auto address = [&](int row) { return target.Row(row0 + row); };
      const BlockTarget<decltype(address), PartColumns<kShare>> block{
          address, target.dtype(), Traits::kPlain || params.aligned, tile.rows - row0,
          static_cast<int>(params.head_dim_v)};
      float lse[2];
      Finalize(state[m].row_max, row_sum[m], O[m], lse);
      StoreBlock<kType>(TileQ{ptx::SharedAddress(Shared().Q)}, row0, O[m], block);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = FragmentRow() + 8 * r;
        if (FragmentCol() != 0) continue;
        Shared().rows[WarpPart<kShare>()][row0 + row] = lse[r];
        if (row < block.rows && WarpPart<kShare>() == 0) target.StoreLse(row0 + row, lse[r]);
      }
      if (!Traits::kPlain || tile.walk.masked > 0) bad |= RowsNotFinite(O[m]) << 16 * m;
    }
    if constexpr (kShare == 2) Common::Sync();
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
                       Shared().rows[WarpPart<kShare>()][row], [&](int col, float value) {
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
cudaError_t LaunchForwardV2(const ForwardParams& params, Schedule schedule, cudaStream_t stream) {
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

template <class Traits>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream) {
  if (params.batch == 0 || params.total_q == 0) return cudaSuccess;
  return LaunchForwardV2<Traits>(params, MakeQTileSchedule(params, Traits::kTileQ), stream);
}

// For what it needs see instances/forward_v2.h.
template <DType kType, int kHeadDim>
cudaError_t LaunchForwardV2(const ForwardParams& params, cudaStream_t stream) {
  constexpr ForwardV2Config kPlain = ForwardV2ConfigFor(kHeadDim, true);
  constexpr ForwardV2Config kFull = ForwardV2ConfigFor(kHeadDim, false);
  return params.plain() && params.aligned && params.page_size % kPlain.tile_kv == 0
             ? LaunchForwardV2<ForwardV2Traits<kType, kPlain, true>>(params, stream)
             : LaunchForwardV2<ForwardV2Traits<kType, kFull, false>>(params, stream);
}

#endif  // __CUDACC__

}  // namespace flashwok::cuda
