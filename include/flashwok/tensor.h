// Tensor: a non-owning view of an array, shaped like DLPack's.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "flashwok/export.h"

namespace flashwok {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,  // finite, no infinity (OCP "e4m3fn")
  kFloat8E5M2,
  kBool,  // one byte, zero or not zero
  kInt32,
};

constexpr int ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    default: return 1;
  }
}

// The name used in messages, files and on the command line: "float32", "bfloat16", ...
FLASHWOK_EXPORT const char* Name(DType dtype);

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// A view: pointer, dtype, shape and strides in elements. An absent optional tensor has rank 0.
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  Device device{};

  bool present() const { return rank != 0; }
  std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
    return rank == 0 ? 0 : count;
  }

  // A row-major view of `shape`; at most kMaxRank axes.
  static Tensor Contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           Device device = {}) {
    Tensor tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.device = device;
    for (std::int64_t extent : shape) {
      if (tensor.rank < kMaxRank) tensor.shape[tensor.rank++] = extent;
    }
    std::int64_t stride = 1;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      tensor.strides[axis] = stride;
      // Wraps where the call that gets the view refuses it.
      stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                         static_cast<std::uint64_t>(tensor.shape[axis]));
    }
    return tensor;
  }
};

}  // namespace flashwok
