// setmaxnreg: moves registers between warpgroups (sm_90a). All warps of the warpgroup take part.
#pragma once

namespace flashwok::cuda::ptx {

template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashwok::cuda::ptx
