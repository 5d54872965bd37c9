// A store by some lanes that is no branch: the compiler knows the lanes together after it.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

// 16 bytes to global memory.
__device__ __forceinline__ void StoreIf(bool condition, void* target, std::uint64_t low,
                                        std::uint64_t high) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v2.u64 [%1], {%2, %3}; }" ::"r"(
                   std::uint32_t{condition}),
               "l"(target), "l"(low), "l"(high)
               : "memory");
}

}  // namespace flashwok::cuda::ptx
