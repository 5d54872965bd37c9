// The 128 opaque bytes of a CUtensorMap: what the copy engine knows of a tensor. Passed by value in
// a __grid_constant__ parameter.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};

}  // namespace flashwok::cuda::ptx
