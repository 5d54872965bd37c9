// An array of the caller's library, seen as a Tensor for as long as this object lives.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashwok/tensor.h"
#include "python/src/dlpack_abi.h"

namespace flashwok::python {

namespace nb = nanobind;

// What DLPack says of an array. `name` is what errors call it; `dtype`: as of FromDlpack.
Tensor MakeTensor(const dlpack::Tensor& from, const char* name, const std::string& dtype = {});

class Array {
 public:
  // By __dlpack_device__ and __dlpack__, never with a copy. `stream` is the CUDA stream, in
  // DLPack's numbers, on which the array will be used. `dtype`: what its elements really are, where
  // the library hands them over as unsigned integers of their size; empty: what it says.
  static Array FromDlpack(nb::object object, std::string name, std::optional<std::int64_t> stream,
                          const std::string& dtype);
  // Memory that somebody else keeps alive: `owner`. `cuda`: of the device with that index; -1: of
  // the CPU.
  static Array FromPointer(std::uintptr_t data, const std::string& dtype,
                           const std::vector<std::int64_t>& shape,
                           const std::vector<std::int64_t>& strides, bool read_only,
                           nb::object owner, std::string name, int cuda);

  Array(Array&& other) noexcept;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  const Tensor& tensor() const { return tensor_; }
  // The same, for a result; throws ValueError when the array is read-only.
  const Tensor& writable() const;

 private:
  Array() = default;

  Tensor tensor_;
  std::string name_;
  bool read_only_ = false;
  dlpack::Managed* managed_ = nullptr;  // one of the two, or neither
  dlpack::Versioned* versioned_ = nullptr;
  nb::object owner_;
};

}  // namespace flashwok::python
