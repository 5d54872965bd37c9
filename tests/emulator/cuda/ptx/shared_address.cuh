// Stands for src/cuda/ptx/shared_address.cuh: addresses count from the start of the shared memory.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

inline std::uint32_t SharedAddress(const void* pointer) { return emulator::SharedOffset(pointer); }
inline unsigned char* DynamicShared() { return emulator::SharedBase(); }

inline void StoreShared(std::uint32_t address, uint4 value) {
  emulator::WriteShared(address, &value, sizeof(value));
}
inline void StoreShared(std::uint32_t address, std::uint32_t value) {
  emulator::WriteShared(address, &value, sizeof(value));
}
inline uint4 LoadShared16(std::uint32_t address) {
  uint4 value;
  emulator::ReadShared(address, &value, sizeof(value));
  return value;
}

}  // namespace flashwok::cuda::ptx
