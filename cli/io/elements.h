// The elements of an array between a file's layout and memory.
#pragma once

#include <cstdint>
#include <functional>

#include "io/input.h"

namespace flashwok::io {

struct FileLayout {
  std::size_t item_size = 0;  // 8 with dtype int32: int64 to be narrowed
  bool swap = false;          // the other byte order
  bool fortran = false;       // first axis fastest
};

// Bytes of an array in a file; an error when an axis is negative or the product does not fit.
Status CheckedBytes(const std::string& what, const std::vector<std::int64_t>& shape,
                    std::size_t item_size, std::uint64_t* bytes);
// A Tensor has 1 to kMaxRank axes.
Status CheckRank(const std::string& what, const std::vector<std::int64_t>& shape);

// Reads the elements that start at `offset`; the caller has checked shape and size. `what` names
// the array in messages.
Status ReadElements(Input& input, const std::string& what, std::uint64_t offset, DType dtype,
                    const std::vector<std::int64_t>& shape, const FileLayout& layout,
                    HostTensor* tensor);

// Takes the next bytes of a file; false ends the writing.
using Sink = std::function<bool(Bytes)>;
// The elements of a view in row-major order.
bool WriteElements(const Tensor& view, const Sink& sink);

}  // namespace flashwok::io
