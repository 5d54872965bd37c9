#include "python/src/array.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

namespace flashwok::python {
namespace {

constexpr DType kAllTypes[] = {DType::kFloat32,    DType::kFloat16,    DType::kBFloat16,
                               DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kBool,
                               DType::kInt32};

[[noreturn]] void Raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

std::optional<DType> FromDlpackType(dlpack::Type type) {
  const auto is = [&](std::uint8_t code, int bits) {
    return type.code == code && type.bits == bits && type.lanes == 1;
  };
  if (is(dlpack::kFloat, 32)) return DType::kFloat32;
  if (is(dlpack::kFloat, 16)) return DType::kFloat16;
  if (is(dlpack::kBfloat, 16)) return DType::kBFloat16;
  if (is(dlpack::kFloat8E4M3, 8)) return DType::kFloat8E4M3;
  if (is(dlpack::kFloat8E5M2, 8)) return DType::kFloat8E5M2;
  if (is(dlpack::kBool, 8)) return DType::kBool;
  if (is(dlpack::kInt, 32)) return DType::kInt32;
  return std::nullopt;
}

std::string Describe(dlpack::Type type) {
  const char* kind = type.code == dlpack::kInt     ? "int"
                     : type.code == dlpack::kUint  ? "uint"
                     : type.code == dlpack::kFloat ? "float"
                                                   : "DLPack type code ";
  std::string text = kind;
  if (type.code > dlpack::kFloat) text += std::to_string(type.code) + " of bits ";
  text += std::to_string(type.bits);
  return type.lanes == 1 ? text : text + " x " + std::to_string(type.lanes);
}

[[noreturn]] void RefuseType(const std::string& array, const std::string& dtype) {
  Raise(PyExc_TypeError, array + ": its dtype is " + dtype +
                             ", must be float32, float16, bfloat16, float8, bool or int32");
}

DType FromTypeName(const std::string& array, const std::string& dtype) {
  for (DType known : kAllTypes) {
    if (dtype == Name(known)) return known;
  }
  RefuseType(array, dtype);
}

// Calls object.__dlpack__ with what it understands of our wishes: older libraries know fewer words.
nb::object Export(const nb::object& object, nb::object stream) {
  const nb::object method = object.attr("__dlpack__");
  try {
    return method(nb::arg("stream") = stream,
                  nb::arg("max_version") = nb::make_tuple(dlpack::kMajor, dlpack::kMinor),
                  nb::arg("copy") = false);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return stream.is_none() ? method() : method(nb::arg("stream") = stream);
}

}  // namespace

Tensor MakeTensor(const dlpack::Tensor& from, const char* name, const std::string& dtype) {
  Tensor tensor;
  if (from.rank < 1 || from.rank > Tensor::kMaxRank) {
    Raise(PyExc_ValueError, std::string(name) + ": has " + std::to_string(from.rank) +
                                " axes, must have 1 to " + std::to_string(Tensor::kMaxRank));
  }
  if (!dtype.empty()) {
    tensor.dtype = FromTypeName(name, dtype);
    if (from.dtype.bits != 8 * ItemSize(tensor.dtype) || from.dtype.lanes != 1) {
      Raise(PyExc_TypeError,
            std::string(name) + ": " + Describe(from.dtype) + " cannot hold " + dtype);
    }
  } else if (const auto known = FromDlpackType(from.dtype)) {
    tensor.dtype = *known;
  } else {
    RefuseType(name, Describe(from.dtype));
  }
  tensor.rank = from.rank;
  const bool cuda = from.device.type == dlpack::kCuda || from.device.type == dlpack::kCudaManaged;
  tensor.device = {cuda ? DeviceType::kCuda : DeviceType::kCpu, cuda ? from.device.index : 0};
  if (from.data != nullptr) tensor.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  const bool empty = std::count(from.shape, from.shape + from.rank, 0) > 0;
  std::int64_t row_major = 1;
  for (int axis = from.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = from.shape[axis];
    // A stride that is never used: libraries leave anything there.
    const bool said = from.strides != nullptr && from.shape[axis] > 1 && !empty;
    tensor.strides[axis] = said ? from.strides[axis] : row_major;
    row_major = tensor.strides[axis] * (from.shape[axis] > 1 ? from.shape[axis] : 1);
  }
  return tensor;
}

Array Array::FromDlpack(nb::object object, std::string name, std::optional<std::int64_t> stream,
                        const std::string& dtype) {
  Array array;
  array.name_ = std::move(name);
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) {
    Raise(PyExc_TypeError, array.name_ + ": is a " +
                               nb::cast<std::string>(nb::str(object.type().attr("__name__"))) +
                               ", must be an array that speaks DLPack");
  }
  const auto device = nb::cast<std::pair<int, int>>(nb::tuple(object.attr("__dlpack_device__")()));
  const bool on_cpu = device.first == dlpack::kCpu || device.first == dlpack::kCudaHost;
  const bool on_cuda = device.first == dlpack::kCuda || device.first == dlpack::kCudaManaged;
  if (!on_cpu && !on_cuda) {
    Raise(PyExc_ValueError, array.name_ + ": is on a device of DLPack type " +
                                std::to_string(device.first) + ", must be on a CPU or CUDA");
  }
  const nb::object capsule =
      Export(object, on_cuda && stream.has_value() ? nb::object(nb::int_(*stream)) : nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* versioned =
        static_cast<dlpack::Versioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned->major != dlpack::kMajor) {
      Raise(PyExc_BufferError,
            array.name_ + ": comes as DLPack " + std::to_string(versioned->major) + ", must be 1");
    }
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    array.versioned_ = versioned;
    array.read_only_ = (versioned->flags & (dlpack::kReadOnly | dlpack::kCopied)) != 0;
    array.tensor_ = MakeTensor(versioned->tensor, array.name_.c_str(), dtype);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    array.managed_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    array.tensor_ = MakeTensor(array.managed_->tensor, array.name_.c_str(), dtype);
  } else {
    Raise(PyExc_BufferError, array.name_ + ": its __dlpack__ gave no DLPack capsule");
  }
  return array;
}

Array Array::FromPointer(std::uintptr_t data, const std::string& dtype,
                         const std::vector<std::int64_t>& shape,
                         const std::vector<std::int64_t>& strides, bool read_only, nb::object owner,
                         std::string name, int cuda) {
  Array array;
  array.name_ = std::move(name);
  array.read_only_ = read_only;
  array.owner_ = std::move(owner);
  if (shape.size() != strides.size()) {
    Raise(PyExc_ValueError, array.name_ + ": shape and strides differ in length");
  }
  const DType known = FromTypeName(array.name_, dtype);
  std::vector<std::int64_t> extents = shape, steps = strides;
  const dlpack::Tensor view{
      reinterpret_cast<void*>(data),
      cuda < 0 ? dlpack::Device{dlpack::kCpu, 0} : dlpack::Device{dlpack::kCuda, cuda},
      static_cast<std::int32_t>(shape.size()),
      {dlpack::kUint, static_cast<std::uint8_t>(8 * ItemSize(known)), 1},
      extents.data(),
      steps.data(),
      0};
  array.tensor_ = MakeTensor(view, array.name_.c_str(), dtype);
  return array;
}

Array::Array(Array&& other) noexcept
    : tensor_(other.tensor_),
      name_(std::move(other.name_)),
      read_only_(other.read_only_),
      managed_(std::exchange(other.managed_, nullptr)),
      versioned_(std::exchange(other.versioned_, nullptr)),
      owner_(std::move(other.owner_)) {}

Array::~Array() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
  if (versioned_ != nullptr && versioned_->deleter != nullptr) versioned_->deleter(versioned_);
}

const Tensor& Array::writable() const {
  if (read_only_) Raise(PyExc_ValueError, name_ + ": is read-only, must be writable");
  return tensor_;
}

}  // namespace flashwok::python
