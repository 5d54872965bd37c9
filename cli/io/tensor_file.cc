#include "io/tensor_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace flashwok::io {
namespace {

constexpr std::align_val_t kAlign{64};

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

Status UnknownExtension(const std::string& path) {
  return Status::Invalid(path + ": the extension is not .npy, .npz or .safetensors");
}

Status ReadFile(const std::string& path, std::unique_ptr<std::byte[]>* data, Bytes* bytes) {
  const auto failed = [&] { return Status::Invalid(path + ": " + std::strerror(errno)); };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed();
  struct stat info {};
  Status status;
  if (::fstat(file, &info) != 0) {
    status = failed();
  } else if (!S_ISREG(info.st_mode)) {
    status = Status::Invalid(path + ": not a regular file");
  } else {
    const auto size = static_cast<std::size_t>(info.st_size);
    data->reset(new (std::nothrow) std::byte[size == 0 ? 1 : size]);
    if (*data == nullptr) {
      status = {StatusCode::kOutOfMemory, fmt::format("{}: no memory for {} bytes", path, size)};
    }
    std::size_t done = 0;
    while (status.ok() && done < size) {
      const ssize_t count = ::read(file, data->get() + done, size - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) status = failed();
      if (count == 0) status = Status::Invalid(path + ": the file shrank while it was read");
      if (count > 0) done += static_cast<std::size_t>(count);
    }
    *bytes = Bytes(data->get(), done);
  }
  ::close(file);
  return status;
}

Status WriteFile(const std::string& path, const std::string& content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return Status::Invalid(path + ": " + std::strerror(errno));
  std::size_t done = 0;
  bool good = true;
  while (good && done < content.size()) {
    const ssize_t count = ::write(file, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    good = count > 0;
    if (good) done += static_cast<std::size_t>(count);
  }
  good = good && ::fsync(file) == 0;
  const int error = errno;
  good = ::close(file) == 0 && good;
  return good ? Status() : Status::Invalid(path + ": " + std::strerror(error));
}

Status WriteTemporary(const std::string& path, const std::string& temporary,
                      const NamedTensors& tensors) {
  if (EndsWith(path, ".npz")) return WriteNpz(temporary, tensors);
  if (EndsWith(path, ".safetensors")) return WriteFile(temporary, FormatSafetensors(tensors));
  if (!EndsWith(path, ".npy")) return UnknownExtension(path);
  if (tensors.size() != 1) {
    return Status::Invalid(fmt::format("{}: a .npy file holds 1 array, not {}; use .npz or "
                                       ".safetensors",
                                       path, tensors.size()));
  }
  std::string content;
  Status status = FormatNpy(*tensors[0].second, path, &content);
  return status.ok() ? WriteFile(temporary, content) : status;
}

}  // namespace

void HostTensor::Free::operator()(std::byte* pointer) const { ::operator delete(pointer, kAlign); }

HostTensor HostTensor::Make(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.num_bytes_ = static_cast<std::size_t>(ItemSize(dtype));
  for (std::int64_t extent : tensor.shape_) tensor.num_bytes_ *= static_cast<std::size_t>(extent);
  const std::size_t size = tensor.num_bytes_ == 0 ? 1 : tensor.num_bytes_;
  tensor.data_.reset(static_cast<std::byte*>(::operator new(size, kAlign)));
  return tensor;
}

Tensor HostTensor::View() const {
  Tensor view;
  view.data = const_cast<std::byte*>(data_.get());
  view.dtype = dtype_;
  view.rank = static_cast<int>(shape_.size());
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = shape_[axis];
    view.strides[axis] = stride;
    stride *= shape_[axis];
  }
  return view;
}

Status CheckedBytes(const std::string& what, const std::vector<std::int64_t>& shape,
                    std::size_t item_size, std::size_t* bytes) {
  if (shape.empty() || shape.size() > Tensor::kMaxRank) {
    return Status::Invalid(fmt::format("{}: the array has {} axes, the limit is 1 to {}", what,
                                       shape.size(), Tensor::kMaxRank));
  }
  // Zero extents must not hide an overflow of the others, which strides are made of.
  std::int64_t product = static_cast<std::int64_t>(item_size);
  bool empty = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) return Status::Invalid(fmt::format("{}: a negative axis, {}", what, extent));
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(product, extent == 0 ? 1 : extent, &product)) {
      return Status::Invalid(what + ": the axes' product is above 2^63 bytes");
    }
  }
  *bytes = empty ? 0 : static_cast<std::size_t>(product);
  return {};
}

Status ReadTensor(const std::string& path, const std::string& name, HostTensor* tensor) {
  std::unique_ptr<std::byte[]> data;
  Bytes bytes;
  if (Status status = ReadFile(path, &data, &bytes); !status.ok()) return status;
  if (EndsWith(path, ".npz")) return ParseNpz(bytes, path, name, tensor);
  if (EndsWith(path, ".safetensors")) return ParseSafetensors(bytes, path, name, tensor);
  if (!EndsWith(path, ".npy")) return UnknownExtension(path);
  if (!name.empty()) {
    return Status::Invalid(path + ": a .npy file has no array names, not '" + name + "'");
  }
  return ParseNpy(bytes, path, tensor);
}

Status ListTensors(const std::string& path, std::vector<TensorEntry>* entries) {
  std::unique_ptr<std::byte[]> data;
  Bytes bytes;
  if (Status status = ReadFile(path, &data, &bytes); !status.ok()) return status;
  if (EndsWith(path, ".npz")) return ListNpz(bytes, path, entries);
  if (EndsWith(path, ".safetensors")) return ListSafetensors(bytes, path, entries);
  if (!EndsWith(path, ".npy")) return UnknownExtension(path);
  entries->emplace_back();
  return ListNpy(bytes, path, &entries->back());
}

Status WriteTensors(const std::string& path, const NamedTensors& tensors) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  Status status = WriteTemporary(path, temporary, tensors);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = Status::Invalid(path + ": " + std::strerror(errno));
  }
  if (!status.ok()) std::remove(temporary.c_str());
  return status;
}

}  // namespace flashwok::io
