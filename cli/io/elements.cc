#include "io/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace flashwok::io {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;

// The row-major positions of an array's elements, visited in the file's order.
class FileOrder {
 public:
  FileOrder(const std::vector<std::int64_t>& shape, bool fortran) : rank_(shape.size()) {
    std::int64_t stride = 1;
    for (std::size_t n = rank_; n-- > 0;) {  // file axis 0 is the fastest
      const std::size_t axis = fortran ? n : rank_ - 1 - n;
      extents_[axis] = shape[n];
      strides_[axis] = stride;
      stride *= shape[n];
    }
  }
  std::size_t position() const { return static_cast<std::size_t>(position_); }
  void Next() {
    for (std::size_t axis = 0; axis < rank_; ++axis) {
      position_ += strides_[axis];
      if (++index_[axis] < extents_[axis]) return;
      position_ -= strides_[axis] * extents_[axis];
      index_[axis] = 0;
    }
  }

 private:
  std::size_t rank_;
  std::array<std::int64_t, Tensor::kMaxRank> extents_{}, strides_{}, index_{};
  std::int64_t position_ = 0;
};

// One element from the file into memory; false when an int64 does not fit.
bool Convert(const std::byte* from, const FileLayout& layout, std::byte* to, std::size_t item,
             std::int64_t* wide) {
  std::byte raw[sizeof(std::int64_t)];
  std::memcpy(raw, from, layout.item_size);
  if (layout.swap) std::reverse(raw, raw + layout.item_size);
  if (layout.item_size != item) {
    std::memcpy(wide, raw, sizeof(*wide));
    const auto narrow = static_cast<std::int32_t>(*wide);
    if (narrow != *wide) return false;
    std::memcpy(raw, &narrow, sizeof(narrow));
  }
  std::memcpy(to, raw, item);
  return true;
}

Status ReadConverted(Input& input, const std::string& what, std::uint64_t offset,
                     const FileLayout& layout, HostTensor* tensor) {
  const auto item = static_cast<std::size_t>(ItemSize(tensor->dtype()));
  const std::size_t count = tensor->num_bytes() / item;
  std::vector<std::byte> chunk(std::min(kChunkBytes, count * layout.item_size));
  FileOrder order(tensor->shape(), layout.fortran);
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(count - done, chunk.size() / layout.item_size);
    const std::span<std::byte> bytes(chunk.data(), now * layout.item_size);
    if (Status status = input.Read(offset + done * layout.item_size, bytes); !status.ok()) {
      return status;
    }
    for (std::size_t n = 0; n < now; ++n, order.Next()) {
      std::int64_t wide = 0;
      if (!Convert(bytes.data() + n * layout.item_size, layout,
                   tensor->data() + order.position() * item, item, &wide)) {
        return Status::Invalid(fmt::format(
            "{}: element {} is {}, the limits of int32 are {} and {}", what, order.position(), wide,
            std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()));
      }
    }
    done += now;
  }
  return {};
}

}  // namespace

Status CheckedBytes(const std::string& what, const std::vector<std::int64_t>& shape,
                    std::size_t item_size, std::uint64_t* bytes) {
  // An empty axis must not hide an overflow of the others, which strides are made of.
  auto product = static_cast<std::int64_t>(item_size);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0)
      return Status::Invalid(fmt::format("{}: an axis of {}, must be 0 or more", what, extent));
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(product, extent == 0 ? 1 : extent, &product)) {
      return Status::Invalid(fmt::format(
          "{}: shape [{}] times {} bytes, the limit is 2^63 - 1 bytes", what,
          fmt::join(shape.begin(), shape.begin() + std::min<std::ptrdiff_t>(8, std::ssize(shape)),
                    ", "),
          item_size));
    }
  }
  *bytes = empty ? 0 : static_cast<std::uint64_t>(product);
  return {};
}

Status CheckRank(const std::string& what, const std::vector<std::int64_t>& shape) {
  if (!shape.empty() && shape.size() <= Tensor::kMaxRank) return {};
  return Status::Invalid(fmt::format("{}: the array has {} axes, the limits are 1 and {}", what,
                                     shape.size(), Tensor::kMaxRank));
}

Status ReadElements(Input& input, const std::string& what, std::uint64_t offset, DType dtype,
                    const std::vector<std::int64_t>& shape, const FileLayout& layout,
                    HostTensor* tensor) {
  HostTensor result = HostTensor::Make(dtype, shape);
  const bool same = layout.item_size == static_cast<std::size_t>(ItemSize(dtype));
  Status status = same && !layout.swap && !layout.fortran
                      ? input.Read(offset, {result.data(), result.num_bytes()})
                      : ReadConverted(input, what, offset, layout, &result);
  if (status.ok()) *tensor = std::move(result);
  return status;
}

bool WriteElements(const Tensor& view, const Sink& sink) {
  const std::int64_t count = view.num_elements();
  if (count == 0) return true;
  const auto item = static_cast<std::int64_t>(ItemSize(view.dtype));
  const auto* data = static_cast<const std::byte*>(view.data);
  int rows = view.rank;  // axes before the run of elements that lie together
  std::int64_t run = 1;
  while (rows > 0 && (view.strides[rows - 1] == run || view.shape[rows - 1] == 1)) {
    run *= view.shape[--rows];
  }
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  std::int64_t position = 0;
  for (std::int64_t done = 0; done < count; done += run) {
    if (!sink({data + position * item, static_cast<std::size_t>(run * item)})) return false;
    for (int axis = rows - 1; axis >= 0; --axis) {
      position += view.strides[axis];
      if (++index[axis] < view.shape[axis]) break;
      position -= view.strides[axis] * view.shape[axis];
      index[axis] = 0;
    }
  }
  return true;
}

}  // namespace flashwok::io
