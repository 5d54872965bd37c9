// DLPack's structs as they lie in memory, versions 0.x and 1.x: how array libraries hand over an
// array without copying it. https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace flashwok::python::dlpack {

enum DeviceCode : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4M3 = 10,  // e4m3fn
  kFloat8E5M2 = 12,
};

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

// In a capsule named "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

// In a capsule named "dltensor_versioned".
struct Versioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1, kCopied = 2;
inline constexpr std::uint32_t kMajor = 1, kMinor = 1;

// The functions of a library, a table that its array type has from 1.3 on as the capsule
// "dlpack_exchange_api" in __dlpack_c_exchange_api__. They give 0, or set an exception of Python.
struct ExchangeHeader {
  std::uint32_t major, minor;
  const ExchangeHeader* previous;  // of an older version, or null
};
struct Exchange {
  ExchangeHeader header;
  void (*others[3])();
  // A view that lives as long as the array is left alone; orders nothing on a stream. May be null.
  int (*tensor_from_object)(void* array, Tensor* view);
  int (*current_stream)(std::int32_t type, std::int32_t index, void** stream);
};

}  // namespace flashwok::python::dlpack
