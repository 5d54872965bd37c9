// The rings of stages between the producer and the consumers of V3, and the barriers of each.
#pragma once

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace flashwok::cuda {

// What is alike in all lanes, so that the compiler knows it and keeps it once a warp: wgmma may not
// stand in a branch that could diverge, and takes its addresses from such registers.
__device__ __forceinline__ std::uint32_t Uniform(std::uint32_t value) {
  return __reduce_or_sync(0xFFFFFFFFu, value);
}
__device__ __forceinline__ int Uniform(int value) {
  return static_cast<int>(Uniform(static_cast<std::uint32_t>(value)));
}

// A place in a ring of stages, which each side walks on its own.
template <int kStages>
struct Ring {
  std::uint32_t count = 0;  // of the places before it

  __device__ __forceinline__ std::uint32_t stage() const { return count % kStages; }
  // Which phase of a barrier is meant.
  __device__ __forceinline__ std::uint32_t parity() const { return count / kStages % 2; }
  __device__ __forceinline__ void Next() { ++count; }
  __device__ __forceinline__ Ring InWarp() const { return {Uniform(count)}; }
  __device__ __forceinline__ Ring Before() const { return {count - 1}; }
  __device__ __forceinline__ Ring After() const { return {count + 1}; }
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

  // The consumers' side.
  __device__ __forceinline__ void WaitFull(const Ring<kStages>& at) {
    ptx::MbarrierWait(&full[at.stage()], at.parity());
  }
  __device__ __forceinline__ void Release(const Ring<kStages>& at) {
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(&empty[at.stage()]);
  }
};

// One tile from (row, head, batch), block by block, by one thread.
template <class Tile>
__device__ __forceinline__ void LoadTile(unsigned char* shared, const ptx::TensorMap& map,
                                         ptx::Mbarrier& full, int row, int head, int batch) {
#pragma unroll
  for (int b = 0; b < Tile::kBlocks; ++b) {
    ptx::TmaLoad(shared + b * Tile::kBlockBytes, &map, &full, b * Tile::kBlock, row, head, batch);
  }
}

enum class ForwardV3Barrier : int { kTurn = 1, kWarpgroup = 5 };  // + the consumer's number

// The consumers' named barriers: of one warpgroup, and of whose turn it is at the tensor core.
template <class Traits>
struct ConsumerGroup {
  int number;

  __device__ __forceinline__ void Sync() const {
    ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kWarpgroup) + number, 128);
  }
  __device__ __forceinline__ void WaitTurn() const {
    if constexpr (Traits::kPingPong) {
      ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kTurn) + number, 256);
    }
  }
  __device__ __forceinline__ void PassTurn() const {
    if constexpr (Traits::kPingPong) {
      const int next = number + 1 < Traits::kConsumers ? number + 1 : 0;
      ptx::BarrierArrive(static_cast<int>(ForwardV3Barrier::kTurn) + next, 256);
    }
  }
};

// Zeros over the last `rows` rows, by a warpgroup; a proxy fence and a barrier follow.
template <class Tile>
__device__ __forceinline__ void ClearLastRows(unsigned char* tile, int rows) {
  constexpr int kChunks = Tile::kWidth / 16;  // of a row in a block
  for (int b = 0; b < Tile::kBlocks; ++b) {
    auto* chunks = reinterpret_cast<uint4*>(tile + b * Tile::kBlockBytes);
    const int first = (Tile::kRows - rows) * kChunks;
#pragma unroll 1
    for (int i = first + static_cast<int>(threadIdx.x % 128); i < Tile::kRows * kChunks; i += 128) {
      chunks[i] = uint4{0, 0, 0, 0};
    }
  }
}

}  // namespace flashwok::cuda
