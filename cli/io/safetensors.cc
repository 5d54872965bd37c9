// The .safetensors format: the length of a JSON header, the header, then the tensors' bytes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/formats.h"
#include "io/safetensors_header.h"

namespace flashwok::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr std::uint64_t kLengthBytes = sizeof(std::uint64_t);

struct FileDType {
  std::string_view name;
  DType dtype;
  std::size_t item_size;
};
constexpr FileDType kDTypes[] = {
    {"F32", DType::kFloat32, 4},        {"F16", DType::kFloat16, 2},
    {"BF16", DType::kBFloat16, 2},      {"F8_E4M3", DType::kFloat8E4M3, 1},
    {"F8_E5M2", DType::kFloat8E5M2, 1}, {"BOOL", DType::kBool, 1},
    {"I32", DType::kInt32, 4},          {"I64", DType::kInt32, 8},
};

struct Header {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::uint64_t data = 0;                 // offset in the file
};

std::string Where(const Input& input, const SafetensorsEntry& entry) {
  return input.what() + ": tensor " + Quoted(entry.name);
}

Status FindDType(const Input& input, const SafetensorsEntry& entry, const FileDType** dtype) {
  *dtype = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                        [&](const FileDType& known) { return known.name == entry.dtype; });
  if (*dtype != std::end(kDTypes)) return {};
  return Status::Invalid(
      Where(input, entry) + ": dtype " + Quoted(entry.dtype) +
      (entry.dtype == "F64"
           ? " (float64) is not read; save it as float32"
           : " is not read, must be F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL, I32 or I64"));
}

// The bytes between the offsets must be those that dtype and shape need.
Status CheckSize(const Input& input, const SafetensorsEntry& entry, std::size_t item_size) {
  std::uint64_t bytes = 0;
  Status status = CheckedBytes(Where(input, entry), entry.shape, item_size, &bytes);
  if (!status.ok() || bytes == entry.end - entry.begin) return status;
  return Status::Invalid(fmt::format("{}: {} bytes by dtype and shape, {} by data_offsets",
                                     Where(input, entry), bytes, entry.end - entry.begin));
}

// The format's rule: the tensors fill the data from end to end, without overlap or gap.
Status CheckLayout(const Input& input, Header* header) {
  auto& entries = header->entries;
  const std::uint64_t size = input.size() - header->data;
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t filled = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto invalid = [&](const std::string& why) {
      return Status::Invalid(fmt::format("{}: data_offsets [{}, {}] {}", Where(input, entry),
                                         entry.begin, entry.end, why));
    };
    if (entry.begin > entry.end || entry.end > size) {
      return invalid(fmt::format("are not within the {} bytes of data", size));
    }
    if (entry.begin < filled) {
      return invalid(fmt::format("overlap the tensor before, which ends at {}", filled));
    }
    if (entry.begin > filled) {
      return invalid(fmt::format("leave a gap after {}, the format allows none", filled));
    }
    filled = entry.end;
    const FileDType* dtype = nullptr;
    if (!FindDType(input, entry, &dtype).ok()) continue;  // an error for who asks for this tensor
    Status status = CheckSize(input, entry, dtype->item_size);
    if (!status.ok()) return status;
  }
  if (filled == size) return {};
  return input.Invalid(
      fmt::format("{} bytes of data, the tensors end at {}; the format allows no "
                  "gap",
                  size, filled));
}

Status ReadHeader(Input& input, Header* header) {
  if (input.size() < kLengthBytes) {
    return input.Invalid(
        fmt::format("{} bytes, a .safetensors file has at least {}", input.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  Status status = input.Read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (!status.ok()) return status;
  const std::uint64_t limit = std::min(kMaxHeader, input.size() - kLengthBytes);
  if (length > limit) {
    return input.Invalid(
        fmt::format("a .safetensors header of {} bytes, the limit is {}", length, limit));
  }
  std::string text(length, '\0');
  status = input.Read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (!status.ok()) return status;
  std::string problem;
  if (!ParseSafetensorsHeader(text, &header->entries, &problem)) return input.Invalid(problem);
  header->data = kLengthBytes + length;
  return CheckLayout(input, header);
}

// In front of the data of a new file.
Status FormatHeader(const std::string& path, const NamedViews& ordered, const Metadata& metadata,
                    std::string* text) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const auto& [name, view] : ordered) {
    if (name == "__metadata__" || header.contains(name)) {
      return Status::Invalid(path + ": tensor " + Quoted(name) + ": the name is taken");
    }
    const auto dtype = view.dtype;
    const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [&](const FileDType& item) { return item.dtype == dtype; });
    const std::int64_t end = offset + view.num_elements() * ItemSize(dtype);
    header[name] = {{"dtype", known->name},
                    {"shape", std::vector(view.shape.begin(), view.shape.begin() + view.rank)},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  try {
    *text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return Status::Invalid(path + ": a name or its metadata is not UTF-8");
  }
  text->append((kLengthBytes - text->size() % kLengthBytes) % kLengthBytes, ' ');
  return {};
}

}  // namespace

Status ListSafetensors(Input& input, std::vector<TensorEntry>* entries) {
  Header header;
  Status status = ReadHeader(input, &header);
  if (!status.ok()) return status;
  for (SafetensorsEntry& entry : header.entries) {
    const FileDType* dtype = nullptr;
    status = FindDType(input, entry, &dtype);
    if (!status.ok()) return status;
    entries->push_back({std::move(entry.name), dtype->dtype, std::move(entry.shape)});
  }
  return {};
}

Status ReadSafetensors(Input& input, const std::string& name, HostTensor* tensor) {
  Header header;
  Status status = ReadHeader(input, &header);
  if (!status.ok()) return status;
  const auto& entries = header.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& candidate) {
    return name.empty() ? entries.size() == 1 : candidate.name == name;
  });
  if (entry == entries.end()) {
    std::vector<std::string> names;
    for (const SafetensorsEntry& item : entries) names.push_back(item.name);
    return input.Invalid("no tensor " + Quoted(name) + ", the file has " + QuotedList(names));
  }
  const FileDType* dtype = nullptr;
  status = FindDType(input, *entry, &dtype);
  if (status.ok()) status = CheckRank(Where(input, *entry), entry->shape);
  if (!status.ok()) return status;
  FileLayout layout;
  layout.item_size = dtype->item_size;
  return ReadElements(input, Where(input, *entry), header.data + entry->begin, dtype->dtype,
                      entry->shape, layout, tensor);
}

Status WriteSafetensors(OutputFile& file, const NamedViews& tensors, const Metadata& metadata) {
  NamedViews ordered = tensors;  // wide elements first, so that each tensor is aligned
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return ItemSize(a.second.dtype) > ItemSize(b.second.dtype);
  });
  std::string text;
  Status status = FormatHeader(file.path(), ordered, metadata, &text);
  if (!status.ok()) return status;
  const std::uint64_t length = text.size();
  file.Append(std::as_bytes(std::span(&length, 1)));
  file.Append(std::as_bytes(std::span(text)));
  for (const auto& [name, view] : ordered) {
    WriteElements(view, [&](Bytes bytes) { return file.Append(bytes); });
  }
  return {};
}

}  // namespace flashwok::io
