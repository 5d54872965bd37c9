// How Q, K and V come to a thread block of V2, and the shared memory that they come to.
#pragma once

#include <cstdint>

#include "cuda/attention/q_tile.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/copy.cuh"

namespace flashwok::cuda {

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

}  // namespace flashwok::cuda
