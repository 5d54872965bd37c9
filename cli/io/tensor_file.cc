#include "io/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "io/formats.h"

namespace flashwok::io {
namespace {

constexpr std::align_val_t kAlign{64};

enum class Format { kNpy, kNpz, kSafetensors };

Status FormatOf(const std::string& path, Format* format) {
  if (path.ends_with(".npy")) {
    *format = Format::kNpy;
  } else if (path.ends_with(".npz")) {
    *format = Format::kNpz;
  } else if (path.ends_with(".safetensors")) {
    *format = Format::kSafetensors;
  } else {
    return Status::Invalid(path + ": the extension must be .npy, .npz or .safetensors");
  }
  return {};
}

// `call`, with a failed allocation as a status.
template <class Call>
Status WithMemory(const std::string& path, const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, path + ": out of memory"};
  }
}

template <class File>
Status Read(File& file, Format format, const std::string& name, HostTensor* tensor) {
  switch (format) {
    case Format::kNpz: return ReadNpz(file, name, tensor);
    case Format::kSafetensors: return ReadSafetensors(file, name, tensor);
    default: break;
  }
  if (name.empty()) return ReadNpy(file, tensor);
  return file.Invalid("no array " + Quoted(name) + ", a .npy file has one without a name");
}

template <class File>
Status List(File& file, Format format, std::vector<TensorEntry>* entries) {
  std::vector<TensorEntry> found;
  Status status;
  switch (format) {
    case Format::kNpy: status = ListNpy(file, &found.emplace_back()); break;
    case Format::kNpz: status = ListNpz(file, &found); break;
    case Format::kSafetensors: status = ListSafetensors(file, &found); break;
  }
  if (status.ok()) *entries = std::move(found);
  return status;
}

Status CheckViews(const std::string& path, const NamedViews& tensors) {
  if (tensors.empty()) return Status::Invalid(path + ": 0 tensors to write, must be 1 or more");
  for (const auto& [name, view] : tensors) {
    const std::string where = path + ": tensor " + Quoted(name);
    if (view.rank < 1 || view.rank > Tensor::kMaxRank) {
      return Status::Invalid(
          fmt::format("{}: rank {}, the limits are 1 and {}", where, view.rank, Tensor::kMaxRank));
    }
    const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    std::uint64_t bytes = 0;
    Status status =
        CheckedBytes(where, shape, static_cast<std::size_t>(ItemSize(view.dtype)), &bytes);
    if (!status.ok()) return status;
    if (view.device.type != DeviceType::kCpu || (bytes > 0 && view.data == nullptr)) {
      return Status::Invalid(where + ": has no data in the CPU's memory");
    }
  }
  return {};
}

Status WriteNpy(OutputFile& file, const Tensor& view) {
  std::string header;
  Status status = NpyHeader(view, file.path(), &header);
  if (!status.ok()) return status;
  file.Append(std::as_bytes(std::span(header)));
  WriteElements(view, [&](Bytes bytes) { return file.Append(bytes); });
  return {};
}

Status Write(const std::string& path, const NamedViews& tensors, const Metadata& metadata) {
  Format format{};
  Status status = FormatOf(path, &format);
  if (status.ok()) status = CheckViews(path, tensors);
  if (!status.ok()) return status;
  if (format == Format::kNpy && tensors.size() != 1) {
    return Status::Invalid(
        fmt::format("{}: {} tensors, a .npy file holds 1; write .npz or "
                    ".safetensors",
                    path, tensors.size()));
  }
  if (format != Format::kSafetensors && !metadata.empty()) {
    return Status::Invalid(path + ": metadata can be written to .safetensors alone");
  }
  OutputFile file(path);
  status = file.Create();
  if (!status.ok()) return status;
  switch (format) {
    case Format::kNpy: status = WriteNpy(file, tensors[0].second); break;
    case Format::kNpz: status = WriteNpz(file, tensors); break;
    case Format::kSafetensors: status = WriteSafetensors(file, tensors, metadata); break;
  }
  return status.ok() ? file.Commit() : status;
}

}  // namespace

void HostTensor::Free::operator()(std::byte* pointer) const { ::operator delete(pointer, kAlign); }

HostTensor HostTensor::Make(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.num_bytes_ = static_cast<std::size_t>(ItemSize(dtype));
  for (const std::int64_t extent : tensor.shape_) {
    tensor.num_bytes_ *= static_cast<std::size_t>(extent);
  }
  const std::size_t size = std::max<std::size_t>(tensor.num_bytes_, 1);
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

Status ReadTensor(Bytes bytes, const std::string& path, const std::string& name,
                  HostTensor* tensor) {
  return WithMemory(path, [&] {
    Format format{};
    if (Status status = FormatOf(path, &format); !status.ok()) return status;
    MemoryInput file(bytes, path);
    return Read(file, format, name, tensor);
  });
}

Status ListTensors(Bytes bytes, const std::string& path, std::vector<TensorEntry>* entries) {
  return WithMemory(path, [&] {
    Format format{};
    if (Status status = FormatOf(path, &format); !status.ok()) return status;
    MemoryInput file(bytes, path);
    return List(file, format, entries);
  });
}

Status ReadTensor(const std::string& path, const std::string& name, HostTensor* tensor) {
  return WithMemory(path, [&] {
    Format format{};
    std::unique_ptr<FileInput> file;
    Status status = FormatOf(path, &format);
    if (status.ok()) status = FileInput::Open(path, &file);
    return status.ok() ? Read(*file, format, name, tensor) : status;
  });
}

Status ListTensors(const std::string& path, std::vector<TensorEntry>* entries) {
  return WithMemory(path, [&] {
    Format format{};
    std::unique_ptr<FileInput> file;
    Status status = FormatOf(path, &format);
    if (status.ok()) status = FileInput::Open(path, &file);
    return status.ok() ? List(*file, format, entries) : status;
  });
}

Status WriteTensors(const std::string& path, const NamedViews& tensors, const Metadata& metadata) {
  return WithMemory(path, [&] { return Write(path, tensors, metadata); });
}

Status WriteTensors(const std::string& path, const NamedTensors& tensors) {
  return WithMemory(path, [&] {
    NamedViews views;
    for (const auto& [name, tensor] : tensors) views.emplace_back(name, tensor->View());
    return Write(path, views, {});
  });
}

}  // namespace flashwok::io
