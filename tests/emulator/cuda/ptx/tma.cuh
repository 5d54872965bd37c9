// Stands for src/cuda/ptx/tma.cuh.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/ptx/tensor_map.h"

namespace flashwok::cuda::ptx {

inline void TmaPrefetchMap(const TensorMap* map) { emulator::CheckMap(map); }

inline void TmaLoad(void* shared, const TensorMap* map, Mbarrier* barrier, int c0, int c1, int c2,
                    int c3) {
  emulator::LoadTile(SharedAddress(shared), map, SharedAddress(barrier), {c0, c1, c2, c3});
}
inline void TmaStore(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
  emulator::StoreTile(map, SharedAddress(shared), {c0, c1, c2, c3});
}
inline void TmaStoreCommit() { emulator::CommitStores(); }
template <int kPending>
void TmaStoreWaitRead() {
  emulator::WaitStores(kPending, true);
}
template <int kPending>
void TmaStoreWait() {
  emulator::WaitStores(kPending, false);
}

}  // namespace flashwok::cuda::ptx
