// Stands for src/cuda/ptx/store_if.cuh.
#pragma once

#include <cstdint>
#include <cstring>

namespace flashwok::cuda::ptx {

inline void StoreIf(bool condition, void* target, std::uint64_t low, std::uint64_t high) {
  const std::uint64_t words[2] = {low, high};
  if (condition) std::memcpy(target, words, sizeof(words));
}

}  // namespace flashwok::cuda::ptx
