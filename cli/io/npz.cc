// The .npz format: a zip archive of .npy files (libzip).
#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <memory>

#include "io/tensor_file.h"

namespace flashwok::io {
namespace {

// An array cannot deflate below a thousandth of its size; more is a bomb.
constexpr std::uint64_t kMaxRatio = 1100;
constexpr std::uint64_t kSlack = 1 << 16;
constexpr zip_int64_t kMaxEntries = 4096;

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

Status Open(Bytes file, const std::string& what, Archive* archive) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(file.data(), file.size(), 0, &error);
  if (source != nullptr) {
    archive->reset(zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error));
    if (*archive == nullptr) zip_source_free(source);
  }
  Status status;
  if (*archive == nullptr) {
    status = Status::Invalid(what + ": not a sound zip archive: " + zip_error_strerror(&error));
  } else if (zip_get_num_entries(archive->get(), 0) > kMaxEntries) {
    status = Status::Invalid(fmt::format("{}: more than {} arrays", what, kMaxEntries));
  }
  zip_error_fini(&error);
  return status;
}

// The array's name: the entry's without ".npy".
std::string ArrayName(const char* entry) {
  std::string name = entry == nullptr ? "" : entry;
  if (name.ends_with(".npy")) name.resize(name.size() - 4);
  return name;
}

Status Names(zip_t* archive, const std::string& what, std::vector<std::string>* names) {
  for (zip_int64_t n = 0; n < zip_get_num_entries(archive, 0); ++n) {
    names->push_back(ArrayName(zip_get_name(archive, n, ZIP_FL_ENC_RAW)));
  }
  std::vector<std::string> sorted = *names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return {};
  return Status::Invalid(what + ": two arrays are named '" + *twice + "'");
}

Status Extract(zip_t* archive, Bytes file, zip_int64_t index, const std::string& where,
               std::unique_ptr<std::byte[]>* data, Bytes* bytes) {
  zip_stat_t info;
  zip_stat_init(&info);
  const auto position = static_cast<zip_uint64_t>(index);
  if (zip_stat_index(archive, position, 0, &info) != 0 || (info.valid & ZIP_STAT_SIZE) == 0) {
    return Status::Invalid(where + ": the zip entry cannot be read");
  }
  const std::uint64_t limit = file.size() * kMaxRatio + kSlack;
  if (info.size > limit) {
    return Status::Invalid(fmt::format("{}: {} bytes when unpacked, the limit for this file is {}",
                                       where, info.size, limit));
  }
  const std::unique_ptr<zip_file_t, Discard> entry(zip_fopen_index(archive, position, 0));
  data->reset(new (std::nothrow) std::byte[info.size + 1]);
  if (entry == nullptr || *data == nullptr) {
    return Status::Invalid(where + ": the zip entry cannot be unpacked");
  }
  std::uint64_t done = 0;
  while (done <= info.size) {  // one byte more than promised shows a wrong size
    const zip_int64_t count = zip_fread(entry.get(), data->get() + done, info.size + 1 - done);
    if (count < 0) return Status::Invalid(where + ": the zip entry is damaged");
    if (count == 0) break;
    done += static_cast<std::uint64_t>(count);
  }
  if (done != info.size) return Status::Invalid(where + ": the zip entry has a wrong size");
  *bytes = Bytes(data->get(), done);
  return {};
}

}  // namespace

Status ListNpz(Bytes file, const std::string& what, std::vector<TensorEntry>* entries) {
  Archive archive;
  std::vector<std::string> names;
  Status status = Open(file, what, &archive);
  if (status.ok()) status = Names(archive.get(), what, &names);
  for (std::size_t n = 0; status.ok() && n < names.size(); ++n) {
    const std::string where = what + ": array '" + names[n] + "'";
    std::unique_ptr<std::byte[]> data;
    Bytes bytes;
    status = Extract(archive.get(), file, static_cast<zip_int64_t>(n), where, &data, &bytes);
    entries->emplace_back();
    if (status.ok()) status = ListNpy(bytes, where, &entries->back());
    entries->back().name = names[n];
  }
  return status;
}

Status ParseNpz(Bytes file, const std::string& what, const std::string& name, HostTensor* tensor) {
  Archive archive;
  std::vector<std::string> names;
  Status status = Open(file, what, &archive);
  if (status.ok()) status = Names(archive.get(), what, &names);
  if (!status.ok()) return status;
  const auto found = name.empty() && names.size() == 1
                         ? names.begin()
                         : std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    return Status::Invalid(
        fmt::format("{}: no array '{}'; it has {}", what, name, fmt::join(names, ", ")));
  }
  const std::string where = what + ": array '" + *found + "'";
  std::unique_ptr<std::byte[]> data;
  Bytes bytes;
  status = Extract(archive.get(), file, found - names.begin(), where, &data, &bytes);
  return status.ok() ? ParseNpy(bytes, where, tensor) : status;
}

Status WriteNpz(const std::string& path, const NamedTensors& tensors) {
  int error = 0;
  Archive archive(zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error));
  if (archive == nullptr) return Status::Invalid(path + ": cannot be created");
  std::vector<std::string> contents(tensors.size());  // read by zip_close
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    Status status = FormatNpy(*tensors[n].second, path, &contents[n]);
    if (!status.ok()) return status;
    zip_source_t* source =
        zip_source_buffer(archive.get(), contents[n].data(), contents[n].size(), 0);
    const zip_int64_t index = zip_file_add(archive.get(), (tensors[n].first + ".npy").c_str(),
                                           source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return Status::Invalid(path + ": " + zip_strerror(archive.get()));
    }
    zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
  }
  if (zip_close(archive.get()) != 0) {
    return Status::Invalid(path + ": " + zip_strerror(archive.get()));
  }
  archive.release();
  return {};
}

}  // namespace flashwok::io
