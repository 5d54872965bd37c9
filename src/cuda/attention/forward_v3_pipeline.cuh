// The rings of stages between the producer and the consumers of V3, and the barriers of each.
#pragma once

#include "cuda/ptx/mbarrier.cuh"
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

  __device__ __forceinline__ int stage() const { return static_cast<int>(count % kStages); }
  // Which phase of a barrier is meant.
  __device__ __forceinline__ std::uint32_t parity() const { return count / kStages % 2; }
  __device__ __forceinline__ void Next() { ++count; }
  __device__ __forceinline__ void NextInWarp() {
    count = Uniform(count + 1);
  }
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

}  // namespace flashwok::cuda
