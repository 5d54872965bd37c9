// Arrays in files: .npy, .npz and .safetensors, by their extension. Readers trust nothing: sizes are
// checked in 64 bits against the file before anything is allocated, and every error is one line that
// names file, tensor, value and limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "flashwok/status.h"
#include "flashwok/tensor.h"

namespace flashwok::io {

using Bytes = std::span<const std::byte>;

// An array that owns its memory: contiguous, row-major, aligned to 64 bytes.
class HostTensor {
 public:
  HostTensor() = default;
  static HostTensor Make(DType dtype, std::vector<std::int64_t> shape);

  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::size_t num_bytes() const { return num_bytes_; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  Tensor View() const;

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  DType dtype_ = DType::kFloat32;
  std::vector<std::int64_t> shape_;
  std::size_t num_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

using NamedTensors = std::vector<std::pair<std::string, const HostTensor*>>;

// `name` may be empty when the file holds one array.
Status ReadTensor(const std::string& path, const std::string& name, HostTensor* tensor);
Status ListTensors(const std::string& path, std::vector<TensorEntry>* entries);

// Writes a temporary file beside `path` and renames it; leaves nothing when it fails.
Status WriteTensors(const std::string& path, const NamedTensors& tensors);

// The formats themselves, on bytes in memory. `what` names the file in messages.
Status ParseNpy(Bytes file, const std::string& what, HostTensor* tensor);
Status ListNpy(Bytes file, const std::string& what, TensorEntry* entry);
Status ParseNpz(Bytes file, const std::string& what, const std::string& name, HostTensor* tensor);
Status ListNpz(Bytes file, const std::string& what, std::vector<TensorEntry>* entries);
Status ParseSafetensors(Bytes file, const std::string& what, const std::string& name,
                        HostTensor* tensor);
Status ListSafetensors(Bytes file, const std::string& what, std::vector<TensorEntry>* entries);

Status FormatNpy(const HostTensor& tensor, const std::string& what, std::string* file);
Status WriteNpz(const std::string& path, const NamedTensors& tensors);
std::string FormatSafetensors(const NamedTensors& tensors);

// Bytes of an array; an error when the axes' product does not fit, or an axis is negative.
Status CheckedBytes(const std::string& what, const std::vector<std::int64_t>& shape,
                    std::size_t item_size, std::size_t* bytes);

}  // namespace flashwok::io
