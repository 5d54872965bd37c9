// Memory in which no access outside a tensor's elements goes unnoticed: around and between them all
// bytes are NaN, and must still be so afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "flashwok/tensor.h"

namespace flashwok::test {

// Calls visit(offset) for each element in row-major order.
template <class Visit>
void ForEachElement(const Tensor& tensor, Visit visit) {
  if (tensor.num_elements() == 0) return;
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  for (std::int64_t n = tensor.num_elements(); n > 0; --n) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < tensor.rank; ++axis) offset += index[axis] * tensor.strides[axis];
    visit(offset);
    for (int axis = tensor.rank - 1; axis >= 0 && ++index[axis] == tensor.shape[axis]; --axis) {
      index[axis] = 0;
    }
  }
}

// The elements in row-major order, to be held against the oracle's vectors.
inline std::vector<double> Read(const Tensor& tensor) {
  std::vector<double> values;
  ForEachElement(tensor, [&](std::int64_t offset) {
    values.push_back(LoadAsFloat(tensor.data, tensor.dtype, offset));
  });
  return values;
}

using Extents = std::vector<std::int64_t>;

class GuardedMemory {
 public:
  // A memory extent of an axis along which all elements are the same.
  static constexpr std::int64_t kBroadcast = -1;

  struct Buffer {
    std::string name;
    std::vector<std::byte> bytes;
    std::vector<std::byte> before;  // as Seal() found them
    std::vector<bool> owned;        // bytes that an output's elements cover
    bool output = false;
    std::byte* data = nullptr;
  };

  Buffer* New(const std::string& name, std::int64_t bytes, bool output) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.name = name;
    buffer.output = output;
    buffer.bytes.assign(static_cast<std::size_t>(bytes) + 2 * kGuard + kAlign, kNaN);
    buffer.owned.assign(output ? buffer.bytes.size() : 0, false);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.bytes.data()) + kGuard;
    buffer.data = buffer.bytes.data() + kGuard + (kAlign - address % kAlign) % kAlign;
    return &buffer;
  }

  // A view of `shape` whose memory has the extents `memory`; `order` lists the axes from the
  // outermost in memory to the innermost.
  static Tensor View(Buffer* buffer, DType dtype, const Extents& shape, const Extents& memory,
                     const std::vector<int>& order, std::int64_t offset) {
    Tensor tensor;
    tensor.dtype = dtype;
    tensor.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape.begin());
    std::int64_t stride = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      tensor.strides[*axis] = memory[*axis] == kBroadcast ? 0 : stride;
      stride *= std::max<std::int64_t>(memory[*axis], 1);
    }
    const std::int64_t item = ItemSize(dtype);
    tensor.data = buffer->data + offset * item;
    if (!buffer->output) return tensor;
    const std::int64_t begin = static_cast<std::byte*>(tensor.data) - buffer->bytes.data();
    ForEachElement(tensor, [&](std::int64_t element) {
      const auto first = buffer->owned.begin() + begin + element * item;
      std::fill(first, first + item, true);
    });
    return tensor;
  }

  // From here on, only the elements of outputs may change.
  void Seal() {
    for (Buffer& buffer : buffers_) buffer.before = buffer.bytes;
  }

  // Fills the outputs with NaN again.
  void ResetOutputs() {
    for (Buffer& buffer : buffers_) {
      if (buffer.output) buffer.bytes = buffer.before;
    }
  }

  // A buffer with its guards, to be copied elsewhere: what lies at a multiple of 64 bytes here lies
  // at one from its begin.
  struct Region {
    std::span<std::byte> bytes;
    bool output;
  };
  std::vector<Region> Regions() {
    std::vector<Region> regions;
    for (Buffer& buffer : buffers_) {
      const std::size_t begin = static_cast<std::size_t>(buffer.data - buffer.bytes.data()) - kGuard;
      regions.push_back({std::span(buffer.bytes).subspan(begin), buffer.output});
    }
    return regions;
  }

  // The buffer that was written where it may not be; empty when all is well.
  std::string Error() const {
    for (const Buffer& buffer : buffers_) {
      for (std::size_t n = 0; n < buffer.bytes.size(); ++n) {
        if (buffer.bytes[n] != buffer.before[n] && !(buffer.output && buffer.owned[n])) {
          return buffer.name + ": byte " + std::to_string(n) + " was overwritten";
        }
      }
    }
    return "";
  }

 private:
  static constexpr std::size_t kGuard = 4096;  // bytes on either side
  static constexpr std::size_t kAlign = 64;
  static constexpr std::byte kNaN{0xFF};  // all ones is NaN in every dtype, -1 as an integer

  std::list<Buffer> buffers_;
};

}  // namespace flashwok::test
