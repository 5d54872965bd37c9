// Orders this thread's ordinary writes to shared memory before reads of the tensor cores and the
// copy engine (sm_90); a barrier follows.
#pragma once

namespace flashwok::cuda::ptx {

__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace flashwok::cuda::ptx
