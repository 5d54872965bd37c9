// The bulk tensor copy engine (sm_90): tiles of up to five dimensions between global and shared
// memory, by one thread. Coordinates count elements, the innermost dimension first; what lies
// outside the tensor is read as zero and not written.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/ptx/tensor_map.h"

namespace flashwok::cuda::ptx {

__device__ __forceinline__ void TmaPrefetchMap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Adds the tile's bytes to the barrier's count as they arrive.
__device__ __forceinline__ void TmaLoad(void* shared, const TensorMap* map, Mbarrier* barrier,
                                        int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void TmaStore(const TensorMap* map, const void* shared, int c0, int c1,
                                         int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(SharedAddress(shared)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void TmaStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until the shared memory of all but kPending of this thread's stores has been read.
template <int kPending>
__device__ __forceinline__ void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until all but kPending of them are done.
template <int kPending>
__device__ __forceinline__ void TmaStoreWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace flashwok::cuda::ptx
