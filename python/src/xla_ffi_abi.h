// The part of XLA's foreign-function interface that a handler on the CPU or a GPU needs, as it lies
// in memory, versions 0.1 to 0.3: so that one build serves every JAX, and none is needed to build.
// Structs carry their size; new fields come at their ends. https://openxla.org/xla/custom_call
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashwok::python::xla {

struct Error;    // XLA's
struct Context;  // XLA's

enum ExtensionKind : std::int32_t { kMetadata = 1 };
struct Extension {
  std::size_t struct_size;
  std::int32_t kind;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  std::int32_t major, minor;
};

// What a handler is asked for when it is registered.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
inline constexpr std::uint32_t kCanBeCaptured = 1;  // into a CUDA graph

enum ErrorCode : std::int32_t {
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
};
struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  std::int32_t code;
};
struct StreamGetArgs {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};
struct OrdinalGetArgs {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  std::int32_t ordinal;  // out
};

// XLA's functions: some of them, by their place in the table.
enum Slot : std::int32_t { kErrorCreate = 0, kStreamGet = 4, kOrdinalGet = 17 };
struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  void* functions[kOrdinalGet + 1];
};

enum DataType : std::int32_t {
  kPred = 1,
  kS32 = 4,
  kS64 = 5,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};
struct Buffer {  // row-major
  std::size_t struct_size;
  Extension* extensions;
  std::int32_t dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};
struct Span {
  const char* data;
  std::size_t size;
};
struct Scalar {
  std::int32_t dtype;
  void* value;
};

// Arguments and results alike; a kind of 1 is a buffer.
struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* kinds;
  void** items;
};
enum AttributeKind : std::int32_t { kScalar = 3, kString = 4 };
struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* kinds;
  Span** names;
  void** items;  // Scalar or Span
};

enum Stage : std::int32_t { kExecute = 3 };
struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  std::int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace flashwok::python::xla
