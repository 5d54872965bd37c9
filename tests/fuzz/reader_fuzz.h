// What must hold for every reader, whatever the bytes are: it answers, a refusal is one line that
// names the file, a failure leaves the output alone, and a tensor that is read agrees with the
// listing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace flashwok::io {

inline void Require(bool holds) {
  if (!holds) std::abort();
}

inline void CheckMessage(const Status& status, const std::string& path) {
  const std::string& message = status.message();
  Require(message.starts_with(path + ": ") && message.size() > path.size() + 2);
  Require(message.find('\n') == std::string::npos && message.size() < 2000);
}

inline void ReadOne(Bytes file, const std::string& path, const TensorEntry& entry) {
  HostTensor tensor;
  const Status status = ReadTensor(file, path, entry.name, &tensor);
  if (!status.ok()) {
    CheckMessage(status, path);
    Require(tensor.data() == nullptr);
    return;
  }
  Require(tensor.dtype() == entry.dtype && tensor.shape() == entry.shape);
  Require(tensor.View().num_elements() * ItemSize(tensor.dtype()) ==
          static_cast<std::int64_t>(tensor.num_bytes()));
  // Every byte must have been written.
  volatile unsigned sum = 0;
  for (std::size_t n = 0; n < tensor.num_bytes(); ++n) {
    sum = sum + static_cast<unsigned>(tensor.data()[n]);
  }
}

inline void FuzzReader(const std::uint8_t* data, std::size_t size, const std::string& path) {
  const Bytes file(reinterpret_cast<const std::byte*>(data), size);
  std::vector<TensorEntry> entries;
  const Status listed = ListTensors(file, path, &entries);
  if (!listed.ok()) {
    CheckMessage(listed, path);
    Require(entries.empty());
    HostTensor tensor;
    const Status status = ReadTensor(file, path, "", &tensor);
    if (!status.ok()) CheckMessage(status, path);
    return;
  }
  constexpr std::size_t kMost = 16;  // keeps an input short
  for (std::size_t n = 0; n < std::min(entries.size(), kMost); ++n) {
    ReadOne(file, path, entries[n]);
  }
}

}  // namespace flashwok::io
