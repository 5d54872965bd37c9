// Addresses of shared memory as PTX takes them: 32 bits, from the start of the shared window.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The dynamic shared memory of the thread block.
__device__ __forceinline__ unsigned char* DynamicShared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  return dynamic_shared;
}

// 16 or 4 bytes written through an address.
__device__ __forceinline__ void StoreShared(std::uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void StoreShared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ uint4 LoadShared16(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace flashwok::cuda::ptx
