// The words that the validator is written in: each check returns whether it holds and keeps the
// message of the first that does not.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <version>

#include "flashwok/status.h"
#include "flashwok/tensor.h"

namespace flashwok {

inline void Append(std::string& text, std::string_view part) { text += part; }
inline void Append(std::string& text, std::int64_t value) { text += std::to_string(value); }
inline void Append(std::string& text, int value) { text += std::to_string(value); }
inline void Append(std::string& text, std::size_t value) { text += std::to_string(value); }
inline void Append(std::string& text, Device device) {
  text += device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}
template <std::floating_point T>
void Append(std::string& text, T value) {
  char digits[32];
#ifdef __cpp_lib_to_chars
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, end.ptr);
#else  // Emscripten 3.1.6, whose one locale is "C": the fewest digits that read back the same
  for (int precision = 1; precision <= 17; ++precision) {
    std::snprintf(digits, sizeof(digits), "%.*g", precision, static_cast<double>(value));
    if (static_cast<T>(std::strtod(digits, nullptr)) == value) break;
  }
  text += digits;
#endif
}

// The parts, one after another, independent of any locale.
template <class... Parts>
std::string Concat(const Parts&... parts) {
  std::string text;
  (Append(text, parts), ...);
  return text;
}

class Check {
 public:
  Check() = default;
  // Of tensors on one device; without it, on that of the first.
  explicit Check(Device device) : device_(device) {}

  const Status& status() const { return status_; }

  template <class... Parts>
  bool Invalid(const Parts&... parts) {
    status_ = Status::Invalid(Concat(parts...));
    return false;
  }
  template <class... Parts>
  bool Unsupported(const Parts&... parts) {
    status_ = Status::Unsupported(Concat(parts...));
    return false;
  }

  // Any tensor that a call touches: known dtype, the call's device, extents and strides from 0, innermost
  // stride 1, every byte offset within 63 bits, data aligned to its dtype.
  bool Input(const char* name, const Tensor& tensor);
  // The same, and no two elements share an address.
  bool Output(const char* name, const Tensor& tensor);

  bool Present(const char* name, const Tensor& tensor);
  // `axes` names them, for the message: "[batch, seqlen_q, num_heads, head_dim]".
  bool Rank(const char* name, const Tensor& tensor, int rank, const char* axes);
  bool Axis(const char* name, const Tensor& tensor, int axis, const char* axis_name,
            std::int64_t expected, const char* source);
  // As Axis, but an extent of 1 broadcasts.
  bool BroadcastAxis(const char* name, const Tensor& tensor, int axis, const char* axis_name,
                     std::int64_t expected, const char* source);
  bool Range(const char* name, const char* what, std::int64_t value, std::int64_t low,
             std::int64_t high);
  bool Type(const char* name, const Tensor& tensor, std::initializer_list<DType> allowed);
  bool SameShape(const char* name, const Tensor& tensor, const char* like_name, const Tensor& like);
  // Data must be given unless there is no element.
  bool Pointer(const char* name, const Tensor& tensor);

 private:
  bool Offsets(const char* name, const Tensor& tensor);
  bool Strides(const char* name, const Tensor& tensor);
  bool OnDevice(const char* name, const Tensor& tensor);

  Status status_;
  std::optional<Device> device_;
};

}  // namespace flashwok
