// The barriers between the producer and the consumers of V3, and the work that passes through them.
#pragma once

#include "common/tile_range.h"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace flashwok::cuda {

// KV tiles [begin, end), of which [full_begin, full_end) need no mask: TileRange in 32 bits, which
// tile numbers fit.
struct KeyTiles {
  int begin = 0, end = 0, full_begin = 0, full_end = 0;

  // Those of `rows` rows from `row`; none past the last row.
  __device__ __forceinline__ static KeyTiles Of(const Sequence& sequence, std::int64_t row,
                                                int rows, int tile_kv) {
    if (row >= sequence.seqlen_q) return {};
    const std::int64_t end = row + rows < sequence.seqlen_q ? row + rows : sequence.seqlen_q;
    const TileRange range = VisitedTiles(sequence.mask, row, end, tile_kv);
    return {static_cast<int>(range.begin), static_cast<int>(range.end),
            static_cast<int>(range.full_begin), static_cast<int>(range.full_end)};
  }
  __device__ __forceinline__ bool empty() const { return begin >= end; }
  __device__ __forceinline__ bool NeedsMask(int j) const { return j < full_begin || j >= full_end; }
  __device__ __forceinline__ bool AnyMask() const { return begin < full_begin || full_end < end; }
};

// What is alike in all lanes, so that the compiler knows it: wgmma may not stand in a branch that
// could diverge.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }
__device__ __forceinline__ WorkItem Uniform(const WorkItem& work) {
  return {Uniform(work.batch), Uniform(work.head), Uniform(work.q_tile)};
}
__device__ __forceinline__ KeyTiles Uniform(const KeyTiles& tiles) {
  return {Uniform(tiles.begin), Uniform(tiles.end), Uniform(tiles.full_begin),
          Uniform(tiles.full_end)};
}

// A place in a ring of stages, which each side walks on its own.
template <int kStages>
struct Ring {
  std::uint32_t count = 0;  // of the places before it

  __device__ __forceinline__ int stage() const { return static_cast<int>(count % kStages); }
  // Which phase of a barrier is meant.
  __device__ __forceinline__ std::uint32_t parity() const { return count / kStages % 2; }
  __device__ __forceinline__ void Next() { ++count; }
  __device__ __forceinline__ Ring Before() const { return {count - 1}; }
};

// full[stage]: its bytes have come. empty[stage]: every consumer warp has let go of it.
template <int kStages>
struct RingBarriers {
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];

  __device__ __forceinline__ void Init(int consumer_warps) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::MbarrierInit(&full[stage], 1);
      ptx::MbarrierInit(&empty[stage], consumer_warps);
    }
  }

  // The producer's side. In the first round every stage is free.
  __device__ __forceinline__ void WaitEmpty(const Ring<kStages>& at) {
    ptx::MbarrierWait(&empty[at.stage()], at.parity() ^ 1);
  }
  __device__ __forceinline__ void Expect(const Ring<kStages>& at, std::uint32_t bytes) {
    ptx::MbarrierArriveExpect(&full[at.stage()], bytes);
  }
  __device__ __forceinline__ void Acquire(const Ring<kStages>& at, std::uint32_t bytes) {
    WaitEmpty(at);
    Expect(at, bytes);
  }

  // The consumers' side.
  __device__ __forceinline__ void WaitFull(const Ring<kStages>& at) {
    ptx::MbarrierWait(&full[at.stage()], at.parity());
  }
  __device__ __forceinline__ void Release(const Ring<kStages>& at) {
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(&empty[at.stage()]);
  }
};

// One tile from (row, head, batch), block by block.
template <class Tile>
__device__ __forceinline__ void LoadTile(unsigned char* shared, const ptx::TensorMap& map,
                                         ptx::Mbarrier& full, int row, int head, int batch) {
#pragma unroll
  for (int b = 0; b < Tile::kBlocks; ++b) {
    ptx::TmaLoad(shared + b * Tile::kBlockBytes, &map, &full, b * Tile::kBlock, row, head, batch);
  }
}

// Zeros in the last `rows` rows of a tile, by a warpgroup. A proxy fence and a barrier follow.
template <class Tile>
__device__ __forceinline__ void ZeroLastRows(unsigned char* shared, int rows) {
  constexpr int kChunks = Tile::kWidth / 16;
  const int first = (Tile::kRows - rows) * kChunks;
  for (int b = 0; b < Tile::kBlocks; ++b) {
    auto* chunks = reinterpret_cast<uint4*>(shared + b * Tile::kBlockBytes);
    for (int i = first + static_cast<int>(threadIdx.x % 128); i < Tile::kRows * kChunks; i += 128) {
      chunks[i] = uint4{0, 0, 0, 0};
    }
  }
}

// Hands out work tiles to a thread block; used by one whole warp.
class WorkSource {
 public:
  __device__ __forceinline__ explicit WorkSource(const ForwardV3Params& p) : p_(p) {}

  __device__ __forceinline__ WorkItem First() {
    index_ = blockIdx.x;
    return Find();
  }
  __device__ __forceinline__ WorkItem Next() {
    Step();
    return Find();
  }

 private:
  __device__ __forceinline__ void Step() {
    if (p_.counter == nullptr) {
      index_ += gridDim.x;
      return;
    }
    unsigned taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(p_.counter, 1u);
    index_ = gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0);
  }

  // The work at index_, or with varlen, where slots can be empty, the next that there is.
  __device__ __forceinline__ WorkItem Find() {
    for (; index_ < p_.schedule.total(); Step()) {
      const Schedule::Place place = p_.schedule.At(index_);
      if (!p_.base.cu_seqlens_q) {
        const auto num_heads = static_cast<std::uint32_t>(p_.base.num_heads);
        return {static_cast<int>(place.head / num_heads), static_cast<int>(place.head % num_heads),
                static_cast<int>(place.q_tile)};
      }
      const WorkItem work = FindSlot(static_cast<int>(place.head), static_cast<int>(place.q_tile));
      if (work.valid()) return work;
    }
    return {};
  }

  // Slot n is the n-th of all sequences' tiles; 32 sequences are looked at together.
  __device__ __forceinline__ WorkItem FindSlot(int head, int slot) {
    const int lane = threadIdx.x % 32;
    const auto batch = static_cast<int>(p_.base.batch);
    for (int b0 = 0; b0 < batch; b0 += 32) {
      int tiles = 0;
      if (b0 + lane < batch) {
        tiles = (static_cast<int>(p_.base.At(b0 + lane).seqlen_q) + p_.tile_q - 1) / p_.tile_q;
      }
      int sum = tiles;  // of the lanes up to this one
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += before;
      }
      const unsigned past = __ballot_sync(0xFFFFFFFFu, slot < sum);
      if (past != 0) {
        const int found = __ffs(past) - 1;
        return {b0 + found, head, slot - __shfl_sync(0xFFFFFFFFu, sum - tiles, found)};
      }
      slot -= __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    return {};
  }

  const ForwardV3Params& p_;
  std::uint32_t index_ = 0;
};

}  // namespace flashwok::cuda
