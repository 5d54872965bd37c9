// Arrays in files: .npy, .npz and .safetensors, by their extension. Readers trust nothing: sizes
// are checked in 64 bits against the file before anything is allocated, and every error is one line
// that names file, tensor, value and limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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
  std::string name;  // empty in a .npy file
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

// `name` may be empty when the file holds one array. int64 becomes int32 where it fits.
// `*tensor` changes on success alone.
Status ReadTensor(const std::string& path, const std::string& name, HostTensor* tensor);
Status ListTensors(const std::string& path, std::vector<TensorEntry>* entries);

// The same from a file that lies in memory; `path` gives the format and names it in messages.
Status ReadTensor(Bytes file, const std::string& path, const std::string& name, HostTensor* tensor);
Status ListTensors(Bytes file, const std::string& path, std::vector<TensorEntry>* entries);

using NamedViews = std::vector<std::pair<std::string, Tensor>>;
using NamedTensors = std::vector<std::pair<std::string, const HostTensor*>>;
using Metadata = std::map<std::string, std::string>;

// Writes a temporary file beside `path` and renames it; leaves nothing when it fails. Views may
// have any strides. Metadata goes into .safetensors alone.
Status WriteTensors(const std::string& path, const NamedViews& tensors,
                    const Metadata& metadata = {});
Status WriteTensors(const std::string& path, const NamedTensors& tensors);

}  // namespace flashwok::io
