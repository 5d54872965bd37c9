// cp.async: copies from global to shared memory past the registers (sm_80).
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

// 16 bytes, both addresses aligned to 16; zeros when not `valid`, and `source` is not read.
__device__ __forceinline__ void CopyAsync16(std::uint32_t destination, const void* source,
                                            bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of this thread's groups are on their way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Asks for the 128 bytes around an address in L2, where a later copy or load finds them.
__device__ __forceinline__ void PrefetchL2(const void* source) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}

}  // namespace flashwok::cuda::ptx
