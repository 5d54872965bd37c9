#include "api/check.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace flashwok {
namespace {

constexpr std::int64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();

// a * b and a + b of numbers from 0; false when 63 bits do not hold them.
bool Multiply(std::int64_t a, std::int64_t b, std::int64_t* product) {
  if (b != 0 && a > kMaxOffset / b) return false;
  *product = a * b;
  return true;
}
bool Add(std::int64_t a, std::int64_t b, std::int64_t* sum) {
  if (a > kMaxOffset - b) return false;
  *sum = a + b;
  return true;
}

std::string ShapeText(const Tensor& tensor) {
  std::string text = "[";
  for (int axis = 0; axis < tensor.rank; ++axis) {
    Append(text, axis == 0 ? "" : ", ");
    Append(text, tensor.shape[axis]);
  }
  return text + "]";
}

}  // namespace

bool Check::Strides(const char* name, const Tensor& tensor) {
  const std::int64_t furthest = kMaxOffset / ItemSize(tensor.dtype);
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t extent = tensor.shape[axis];
    const std::int64_t stride = tensor.strides[axis];
    if (extent < 0) return Invalid(name, ": shape[", axis, "] is ", extent, ", must be from 0");
    // The stride of an axis of extent 1 leads nowhere, and exporters leave any number there.
    if (stride > furthest || stride < (extent > 1 ? 0 : -furthest)) {
      return Invalid(name, ": strides[", axis, "] is ", stride, ", must be from 0 to ", furthest);
    }
    if (axis == tensor.rank - 1 && extent > 1 && stride != 1) {
      return Invalid(name, ": innermost stride is ", stride, ", must be 1");
    }
  }
  return true;
}

bool Check::Offsets(const char* name, const Tensor& tensor) {
  std::int64_t count = 1;
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t extent = tensor.shape[axis];
    std::int64_t span = 0;
    const bool fits = Multiply(count, std::max<std::int64_t>(extent, 1), &count) &&
                      (extent <= 1 || (Multiply(extent - 1, tensor.strides[axis], &span) &&
                                       Add(last, span, &last)));
    if (!fits) return Invalid(name, ": shape ", ShapeText(tensor), " passes 2^63 elements");
  }
  std::int64_t bytes = 0;
  const std::int64_t item_size = ItemSize(tensor.dtype);
  if (!Add(last, 1, &last) || !Multiply(last, item_size, &bytes) ||
      !Multiply(count, item_size, &bytes)) {
    return Invalid(name, ": shape ", ShapeText(tensor), " passes 2^63 bytes");
  }
  return true;
}

bool Check::OnDevice(const char* name, const Tensor& tensor) {
  const Device& device = tensor.device;
  if (device.type > DeviceType::kCuda) {
    return Invalid(name, ": device type is ", static_cast<int>(device.type),
                   ", must be from 0 to ", static_cast<int>(DeviceType::kCuda));
  }
  if (!device_) device_ = device;
  return device == *device_ || Invalid(name, ": is on ", device, ", must be on ", *device_,
                                       ", where the tensors before it are");
}

bool Check::Input(const char* name, const Tensor& tensor) {
  if (tensor.rank < 1 || tensor.rank > Tensor::kMaxRank) {
    return Invalid(name, ": rank is ", tensor.rank, ", must be from 1 to ", Tensor::kMaxRank);
  }
  if (tensor.dtype > DType::kInt32) {
    return Invalid(name, ": dtype is ", static_cast<int>(tensor.dtype), ", must be from 0 to ",
                   static_cast<int>(DType::kInt32));
  }
  if (!OnDevice(name, tensor)) return false;
  if (!Strides(name, tensor) || !Offsets(name, tensor)) return false;
  const std::uintptr_t misaligned = reinterpret_cast<std::uintptr_t>(tensor.data) %
                                    static_cast<std::uintptr_t>(ItemSize(tensor.dtype));
  if (misaligned != 0) {
    return Invalid(name, ": data address is ", static_cast<std::int64_t>(misaligned),
                   " past a multiple of ", ItemSize(tensor.dtype), ", must be aligned to ",
                   Name(tensor.dtype));
  }
  return true;
}

bool Check::Output(const char* name, const Tensor& tensor) {
  if (!Input(name, tensor)) return false;
  if (tensor.num_elements() == 0) return true;
  std::vector<std::pair<std::int64_t, int>> order;  // {stride, axis}
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] > 1) order.emplace_back(tensor.strides[axis], axis);
  }
  std::sort(order.begin(), order.end());
  std::int64_t span = 1;  // elements that the finer axes reach over
  for (const auto& [stride, axis] : order) {
    if (stride == 0) {
      return Invalid(name, ": strides[", axis, "] is 0 over ", tensor.shape[axis],
                     " elements, must not be 0 in an output");
    }
    if (stride < span) {
      return Invalid(name, ": strides[", axis, "] is ", stride, ", must be from ", span,
                     " so that no two elements of this output share an address");
    }
    span += (tensor.shape[axis] - 1) * stride;
  }
  return true;
}

bool Check::Present(const char* name, const Tensor& tensor) {
  return tensor.present() || Invalid(name, ": is absent (rank 0), must be given");
}

bool Check::Rank(const char* name, const Tensor& tensor, int rank, const char* axes) {
  return tensor.rank == rank ||
         Invalid(name, ": rank is ", tensor.rank, ", must be ", rank, ": ", axes);
}

bool Check::Axis(const char* name, const Tensor& tensor, int axis, const char* axis_name,
                 std::int64_t expected, const char* source) {
  return tensor.shape[axis] == expected ||
         Invalid(name, ": ", axis_name, " (axis ", axis, ") is ", tensor.shape[axis], ", must be ",
                 expected, " as in ", source);
}

bool Check::BroadcastAxis(const char* name, const Tensor& tensor, int axis, const char* axis_name,
                          std::int64_t expected, const char* source) {
  const std::int64_t extent = tensor.shape[axis];
  return extent == 1 || extent == expected ||
         Invalid(name, ": ", axis_name, " (axis ", axis, ") is ", extent, ", must be 1 or ",
                 expected, " as in ", source);
}

bool Check::Range(const char* name, const char* what, std::int64_t value, std::int64_t low,
                  std::int64_t high) {
  return (low <= value && value <= high) ||
         Invalid(name, ": ", what, value, ", must be from ", low, " to ", high);
}

bool Check::Type(const char* name, const Tensor& tensor, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.dtype) != allowed.end()) return true;
  std::string names;
  for (const DType* dtype = allowed.begin(); dtype != allowed.end(); ++dtype) {
    if (std::find(allowed.begin(), dtype, *dtype) != dtype) continue;  // named already
    Append(names, names.empty() ? "" : " or ");
    Append(names, Name(*dtype));
  }
  return Invalid(name, ": dtype is ", Name(tensor.dtype), ", must be ", names);
}

bool Check::SameShape(const char* name, const Tensor& tensor, const char* like_name,
                      const Tensor& like) {
  const bool same =
      tensor.rank == like.rank &&
      std::equal(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, like.shape.begin());
  return same || Invalid(name, ": shape is ", ShapeText(tensor), ", must be ", ShapeText(like),
                         " as ", like_name);
}

bool Check::Pointer(const char* name, const Tensor& tensor) {
  return tensor.num_elements() == 0 || tensor.data != nullptr ||
         Invalid(name, ": data is null, must point to ", tensor.num_elements(), " elements");
}

}  // namespace flashwok
