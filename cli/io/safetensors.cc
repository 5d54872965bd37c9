// The .safetensors format: the length of a JSON header, the header, then the tensors' bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/tensor_file.h"

namespace flashwok::io {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr int kMaxDepth = 4;

struct FileDType {
  const char* name;
  DType dtype;
  std::size_t item_size;
};
constexpr FileDType kDTypes[] = {
    {"F32", DType::kFloat32, 4},     {"F16", DType::kFloat16, 2},
    {"BF16", DType::kBFloat16, 2},   {"F8_E4M3", DType::kFloat8E4M3, 1},
    {"F8_E5M2", DType::kFloat8E5M2, 1}, {"BOOL", DType::kBool, 1},
    {"I32", DType::kInt32, 4},       {"I64", DType::kInt32, 8},
};

struct Entry : TensorEntry {
  std::size_t item_size = 0;
  std::uint64_t begin = 0, end = 0;  // in the data
};

Status ParseEntry(const std::string& what, const std::string& name, const Json& value,
                  std::uint64_t data_size, Entry* entry) {
  const std::string where = what + ": tensor '" + name + "'";
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    return Status::Invalid(where + " is not described by dtype, shape and data_offsets");
  }
  entry->name = name;
  const std::string dtype = value["dtype"].get<std::string>();
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](const FileDType& item) { return dtype == item.name; });
  if (known == std::end(kDTypes)) {
    return Status::Invalid(where + " has dtype " + dtype.substr(0, 32) +
                           (dtype == "F64" ? ", which is not supported; save it as float32"
                                           : ", which is not supported"));
  }
  entry->dtype = known->dtype;
  entry->item_size = known->item_size;
  for (const Json& extent : value["shape"]) {
    if (!extent.is_number_unsigned() ||
        extent.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      return Status::Invalid(where + " has an axis that is not a size");
    }
    entry->shape.push_back(extent.get<std::int64_t>());
  }
  for (const Json& offset : value["data_offsets"]) {
    if (!offset.is_number_unsigned()) return Status::Invalid(where + " has a bad data offset");
  }
  entry->begin = value["data_offsets"][0].get<std::uint64_t>();
  entry->end = value["data_offsets"][1].get<std::uint64_t>();
  if (entry->begin > entry->end || entry->end > data_size) {
    return Status::Invalid(fmt::format("{} has data offsets [{}, {}], the file has {} bytes of data",
                                       where, entry->begin, entry->end, data_size));
  }
  return {};
}

Status CheckSize(const std::string& what, const Entry& entry) {
  const std::string where = what + ": tensor '" + entry.name + "'";
  std::size_t bytes = 0;
  Status status = CheckedBytes(where, entry.shape, entry.item_size, &bytes);
  if (status.ok() && bytes != entry.end - entry.begin) {
    status = Status::Invalid(fmt::format("{} has {} bytes by its shape and {} by its offsets", where,
                                         bytes, entry.end - entry.begin));
  }
  return status;
}

Status CheckOverlap(const std::string& what, const std::vector<Entry>& entries) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) {
    if (entry.begin != entry.end) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return a->begin < b->begin; });
  for (std::size_t n = 1; n < order.size(); ++n) {
    if (order[n]->begin < order[n - 1]->end) {
      return Status::Invalid(fmt::format("{}: tensors '{}' and '{}' overlap", what,
                                         order[n - 1]->name, order[n]->name));
    }
  }
  return {};
}

// The header as JSON, or null. Deep nesting and repeated keys are refused while parsing.
Json ParseJson(const char* text, std::size_t size) {
  bool good = true;
  std::vector<std::vector<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) good = false;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) {
      std::sort(keys.back().begin(), keys.back().end());
      if (std::adjacent_find(keys.back().begin(), keys.back().end()) != keys.back().end()) {
        good = false;
      }
      keys.pop_back();
    }
    if (event == Json::parse_event_t::key && !keys.empty()) {
      keys.back().push_back(value.get<std::string>());
    }
    return good;
  };
  Json json = Json::parse(text, text + size, watch, false);
  return good && json.is_object() ? json : Json();
}

Status ParseHeader(Bytes file, const std::string& what, std::vector<Entry>* entries, Bytes* data) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return Status::Invalid(what + ": shorter than the 8 bytes of a .safetensors header length");
  }
  std::memcpy(&length, file.data(), sizeof(length));
  const std::uint64_t limit = std::min<std::uint64_t>(kMaxHeader, file.size() - sizeof(length));
  if (length > limit) {
    return Status::Invalid(
        fmt::format("{}: a .safetensors header of {} bytes, the limit is {}", what, length, limit));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(length);
  const Json header = ParseJson(text, length);
  if (header.is_null()) {
    return Status::Invalid(what + ": the .safetensors header is not a JSON object of tensors, each "
                                  "named once");
  }
  *data = file.subspan(sizeof(length) + length);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    entries->emplace_back();
    Status status = ParseEntry(what, name, value, data->size(), &entries->back());
    if (!status.ok()) return status;
  }
  return CheckOverlap(what, *entries);
}

std::string Names(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(entry.name.substr(0, 64));
  if (names.size() > 8) {
    names.resize(8);
    names.emplace_back("...");
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Status ListSafetensors(Bytes file, const std::string& what, std::vector<TensorEntry>* entries) {
  std::vector<Entry> all;
  Bytes data;
  if (Status status = ParseHeader(file, what, &all, &data); !status.ok()) return status;
  entries->assign(all.begin(), all.end());
  return {};
}

Status ParseSafetensors(Bytes file, const std::string& what, const std::string& name,
                        HostTensor* tensor) {
  std::vector<Entry> entries;
  Bytes data;
  if (Status status = ParseHeader(file, what, &entries, &data); !status.ok()) return status;
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& candidate) {
    return name.empty() ? entries.size() == 1 : candidate.name == name;
  });
  if (entry == entries.end()) {
    return Status::Invalid(fmt::format("{}: no tensor '{}'; it has {}", what, name, Names(entries)));
  }
  if (Status status = CheckSize(what, *entry); !status.ok()) return status;
  *tensor = HostTensor::Make(entry->dtype, entry->shape);
  const std::byte* from = data.data() + entry->begin;
  if (entry->item_size == static_cast<std::size_t>(ItemSize(entry->dtype))) {
    if (tensor->num_bytes() > 0) std::memcpy(tensor->data(), from, tensor->num_bytes());
    return {};
  }
  for (std::size_t n = 0; n * sizeof(std::int32_t) < tensor->num_bytes(); ++n) {
    std::int64_t wide = 0;
    std::memcpy(&wide, from + n * sizeof(wide), sizeof(wide));
    const auto narrow = static_cast<std::int32_t>(wide);
    if (wide != narrow) {
      return Status::Invalid(fmt::format("{}: tensor '{}': element {} is {}, outside int32", what,
                                         entry->name, n, wide));
    }
    std::memcpy(tensor->data() + n * sizeof(narrow), &narrow, sizeof(narrow));
  }
  return {};
}

std::string FormatSafetensors(const NamedTensors& tensors) {
  Json header = Json::object();
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const DType dtype = tensor->dtype();
    const auto* known =
        std::find_if(std::begin(kDTypes), std::end(kDTypes),
                     [dtype](const FileDType& item) { return item.dtype == dtype; });
    header[name] = {{"dtype", known->name},
                    {"shape", tensor->shape()},
                    {"data_offsets", {offset, offset + tensor->num_bytes()}}};
    offset += tensor->num_bytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += text;
  for (const auto& [name, tensor] : tensors) {
    file.append(reinterpret_cast<const char*>(tensor->data()), tensor->num_bytes());
  }
  return file;
}

}  // namespace flashwok::io
