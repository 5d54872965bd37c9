// The .npz format: a zip archive of .npy files (libzip).
#include <fmt/format.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "io/formats.h"

namespace flashwok::io {
namespace {

// Deflate cannot shrink further than by 1032; an entry that claims more is not sound.
constexpr std::uint64_t kMaxRatio = 1032;
constexpr zip_int64_t kMaxEntries = 4096;
constexpr std::uint64_t kEndBytes = 22;  // the record that ends every archive

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using ArchivePtr = std::unique_ptr<zip_t, Discard>;

// Messages of one zip error, freed at the end.
struct ZipError {
  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  zip_error_t error;
};

struct Entry {
  std::string name;
  std::uint64_t size = 0, packed = 0;
};

struct Archive {
  const Input& file;
  ArchivePtr zip;
  std::vector<Entry> entries;  // by index
};

// An entry, read forwards.
class EntryInput : public Input {
 public:
  EntryInput(zip_file_t* entry, std::uint64_t size, std::string what)
      : Input(std::move(what)), entry_(entry), size_(size) {}

  std::uint64_t size() const override { return size_; }
  Status Read(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset != position_ || out.size() > size_ - position_) {
      return Invalid("read out of order");
    }
    while (!out.empty()) {
      const zip_int64_t count = zip_fread(entry_.get(), out.data(), out.size());
      if (count < 0) return Damaged();
      if (count == 0) {
        return Invalid(fmt::format("unpacks to {} bytes, the archive says {}", position_, size_));
      }
      position_ += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }
  // Whether the entry ends where it should; the check sum is compared there.
  Status End() {
    std::byte more{};
    const zip_int64_t count = zip_fread(entry_.get(), &more, 1);
    if (count < 0) return Damaged();
    if (count == 0) return {};
    return Invalid(fmt::format("unpacks to more than the {} bytes that the archive says", size_));
  }

 private:
  Status Damaged() {
    return Invalid(std::string("the zip entry is damaged: ") +
                   zip_error_strerror(zip_file_get_error(entry_.get())));
  }
  std::unique_ptr<zip_file_t, Discard> entry_;
  std::uint64_t size_;
  std::uint64_t position_ = 0;
};

std::string Where(const Archive& archive, const Entry& entry) {
  return archive.file.what() + ": array " + Quoted(entry.name);
}

Status ReadEntry(const Archive& archive, zip_uint64_t index, Entry* entry) {
  zip_stat_t info;
  zip_stat_init(&info);
  constexpr zip_uint64_t kNeeded =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  const char* name = zip_get_name(archive.zip.get(), index, ZIP_FL_ENC_RAW);
  if (name == nullptr || zip_stat_index(archive.zip.get(), index, 0, &info) != 0 ||
      (info.valid & kNeeded) != kNeeded) {
    return archive.file.Invalid(fmt::format("zip entry {} cannot be read", index));
  }
  entry->name = name;
  if (entry->name.ends_with(".npy")) entry->name.resize(entry->name.size() - 4);
  entry->size = info.size;
  entry->packed = info.comp_size;
  const std::string where = Where(archive, *entry);
  if (info.encryption_method != ZIP_EM_NONE) {
    return Status::Invalid(where + ": is encrypted, which is not read");
  }
  if (info.comp_method != ZIP_CM_STORE && info.comp_method != ZIP_CM_DEFLATE) {
    return Status::Invalid(fmt::format(
        "{}: compression method {}, must be 0 (stored) or 8 (deflated)", where, info.comp_method));
  }
  const std::uint64_t ratio = info.comp_method == ZIP_CM_STORE ? 1 : kMaxRatio;
  if (info.size / ratio > info.comp_size) {
    return Status::Invalid(fmt::format("{}: {} bytes unpacked from {}, the limit is {} times",
                                       where, info.size, info.comp_size, ratio));
  }
  return {};
}

Status ReadEntries(Archive* archive) {
  const zip_int64_t count = zip_get_num_entries(archive->zip.get(), 0);
  if (count > kMaxEntries) {
    return archive->file.Invalid(fmt::format("{} arrays, the limit is {}", count, kMaxEntries));
  }
  std::uint64_t left = archive->file.size();  // entries that share bytes run out of it
  std::vector<std::string> names;
  for (zip_int64_t n = 0; n < count; ++n) {
    Entry& entry = archive->entries.emplace_back();
    Status status = ReadEntry(*archive, static_cast<zip_uint64_t>(n), &entry);
    if (!status.ok()) return status;
    if (entry.packed > left) {
      return Status::Invalid(fmt::format("{}: {} packed bytes, of the file's {} only {} are left",
                                         Where(*archive, entry), entry.packed, archive->file.size(),
                                         left));
    }
    left -= entry.packed;
    names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return archive->file.Invalid("two arrays are named " + Quoted(*twice));
}

// libzip takes a file of no bytes for an archive.
Status CheckLength(const Input& file) {
  if (file.size() >= kEndBytes) return {};
  return file.Invalid(fmt::format("not a sound zip archive: {} bytes, must be at least {}",
                                  file.size(), kEndBytes));
}

Status OpenSource(zip_source_t* source, ZipError& error, Archive* archive) {
  if (source != nullptr) {
    archive->zip.reset(zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error.error));
    if (archive->zip == nullptr) zip_source_free(source);
  }
  if (archive->zip != nullptr) return ReadEntries(archive);
  if (zip_error_code_zip(&error.error) == ZIP_ER_EXISTS) {
    return archive->file.Invalid("two arrays have the same name");
  }
  return archive->file.Invalid(std::string("not a sound zip archive: ") +
                               zip_error_strerror(&error.error));
}

Status Open(const MemoryInput& file, Archive* archive) {
  if (Status status = CheckLength(file); !status.ok()) return status;
  ZipError error;
  return OpenSource(zip_source_buffer_create(file.bytes().data(), file.size(), 0, &error.error),
                    error, archive);
}

Status Open(const FileInput& file, Archive* archive) {
  if (Status status = CheckLength(file); !status.ok()) return status;
  ZipError error;
  const int descriptor = ::dup(file.descriptor());
  std::FILE* stream = descriptor < 0 ? nullptr : ::fdopen(descriptor, "rb");
  if (stream == nullptr) {
    if (descriptor >= 0) ::close(descriptor);
    return file.Invalid("cannot be opened as a stream");
  }
  zip_source_t* source = zip_source_filep_create(stream, 0, -1, &error.error);  // owns the stream
  if (source == nullptr) std::fclose(stream);
  return OpenSource(source, error, archive);
}

// Calls `read` with the entry's bytes.
template <class Read>
Status WithEntry(const Archive& archive, std::size_t index, bool whole, const Read& read) {
  const Entry& entry = archive.entries[index];
  zip_file_t* file = zip_fopen_index(archive.zip.get(), index, 0);
  if (file == nullptr) {
    return Status::Invalid(Where(archive, entry) + ": " + zip_strerror(archive.zip.get()));
  }
  EntryInput input(file, entry.size, Where(archive, entry));
  Status status = read(input);
  return status.ok() && whole ? input.End() : status;
}

template <class File>
Status Read(File& file, const std::string& name, HostTensor* tensor) {
  Archive archive{file, nullptr, {}};
  Status status = Open(file, &archive);
  if (!status.ok()) return status;
  const std::vector<Entry>& entries = archive.entries;
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    return name.empty() ? entries.size() == 1 : entry.name == name;
  });
  if (found == entries.end()) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) names.push_back(entry.name);
    return file.Invalid("no array " + Quoted(name) + ", the file has " + QuotedList(names));
  }
  HostTensor result;
  status = WithEntry(archive, static_cast<std::size_t>(found - entries.begin()), true,
                     [&](Input& input) { return ReadNpy(input, &result); });
  if (status.ok()) *tensor = std::move(result);
  return status;
}

template <class File>
Status List(File& file, std::vector<TensorEntry>* entries) {
  Archive archive{file, nullptr, {}};
  Status status = Open(file, &archive);
  for (std::size_t n = 0; status.ok() && n < archive.entries.size(); ++n) {
    TensorEntry& entry = entries->emplace_back();
    entry.name = archive.entries[n].name;
    status = WithEntry(archive, n, false, [&](Input& input) { return ListNpy(input, &entry); });
  }
  return status;
}

Status AddArray(zip_t* zip, const std::string& path, const std::string& name,
                const std::string& content) {
  zip_source_t* source = zip_source_buffer(zip, content.data(), content.size(), 0);
  const zip_int64_t index = zip_file_add(zip, (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    return Status::Invalid(path + ": array " + Quoted(name) + ": " + zip_strerror(zip));
  }
  constexpr zip_uint16_t kFirstDay = 1 << 5 | 1;  // 1980-01-01: the same arrays give the same file
  const auto position = static_cast<zip_uint64_t>(index);
  if (zip_set_file_compression(zip, position, ZIP_CM_STORE, 0) == 0 &&
      zip_file_set_dostime(zip, position, 0, kFirstDay, 0) == 0) {
    return {};
  }
  return Status::Invalid(path + ": " + zip_strerror(zip));
}

// The archive that libzip writes, straight into the output file: libzip would make a temporary file
// of its own, which a signal leaves behind.
class ArchiveSink {
 public:
  explicit ArchiveSink(OutputFile& file) : file_(file) { zip_error_init(&error_); }
  ~ArchiveSink() { zip_error_fini(&error_); }
  ArchiveSink(const ArchiveSink&) = delete;
  ArchiveSink& operator=(const ArchiveSink&) = delete;

  // A zip_source_callback; `state` is the sink, which outlives the source.
  static zip_int64_t Call(void* state, void* data, zip_uint64_t size, zip_source_cmd_t command) {
    return static_cast<ArchiveSink*>(state)->Do(command, data, size);
  }

 private:
  zip_int64_t Do(zip_source_cmd_t command, void* data, zip_uint64_t size) {
    switch (command) {
      case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_SUPPORTS, ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
            ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
            ZIP_SOURCE_BEGIN_WRITE, ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE,
            ZIP_SOURCE_WRITE, ZIP_SOURCE_SEEK_WRITE, ZIP_SOURCE_TELL_WRITE, ZIP_SOURCE_REMOVE, -1);
      case ZIP_SOURCE_STAT: {  // there is no archive yet
        zip_error_set(&error_, ZIP_ER_READ, ENOENT);
        return -1;
      }
      case ZIP_SOURCE_ERROR: return zip_error_to_data(&error_, data, size);
      case ZIP_SOURCE_TELL_WRITE: return static_cast<zip_int64_t>(position_);
      case ZIP_SOURCE_SEEK_WRITE: {
        const zip_int64_t to = zip_source_seek_compute_offset(position_, end_, data, size, &error_);
        if (to < 0) return -1;
        position_ = static_cast<zip_uint64_t>(to);
        return 0;
      }
      case ZIP_SOURCE_WRITE: {
        const Bytes bytes(static_cast<const std::byte*>(data), size);
        if (!file_.WriteAt(position_, bytes)) {
          zip_error_set(&error_, ZIP_ER_WRITE, file_.error());
          return -1;
        }
        position_ += size;
        end_ = std::max(end_, position_);
        return static_cast<zip_int64_t>(size);
      }
      case ZIP_SOURCE_BEGIN_WRITE:
      case ZIP_SOURCE_COMMIT_WRITE:
      case ZIP_SOURCE_ROLLBACK_WRITE:
      case ZIP_SOURCE_REMOVE:
      case ZIP_SOURCE_CLOSE:
      case ZIP_SOURCE_FREE: return 0;
      default: {
        zip_error_set(&error_, ZIP_ER_OPNOTSUPP, 0);
        return -1;
      }
    }
  }

  OutputFile& file_;
  zip_error_t error_;
  zip_uint64_t position_ = 0, end_ = 0;
};

}  // namespace

Status ReadNpz(FileInput& file, const std::string& name, HostTensor* tensor) {
  return Read(file, name, tensor);
}
Status ReadNpz(MemoryInput& file, const std::string& name, HostTensor* tensor) {
  return Read(file, name, tensor);
}
Status ListNpz(FileInput& file, std::vector<TensorEntry>* entries) { return List(file, entries); }
Status ListNpz(MemoryInput& file, std::vector<TensorEntry>* entries) { return List(file, entries); }

Status WriteNpz(OutputFile& file, const NamedViews& tensors) {
  const auto failed = [&](const char* why) { return Status::Invalid(file.path() + ": " + why); };
  std::vector<std::string> contents(tensors.size());  // read by zip_close
  ArchiveSink sink(file);
  ZipError error;
  zip_source_t* const source = zip_source_function_create(&ArchiveSink::Call, &sink, &error.error);
  ArchivePtr zip(source == nullptr
                     ? nullptr
                     : zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &error.error));
  if (zip == nullptr) {
    if (source != nullptr) zip_source_free(source);
    return failed(zip_error_strerror(&error.error));
  }
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const auto& [name, view] = tensors[n];
    std::string& content = contents[n];
    Status status = NpyHeader(view, file.path() + ": array " + Quoted(name), &content);
    if (!status.ok()) return status;
    content.reserve(content.size() + static_cast<std::size_t>(view.num_elements()) *
                                         static_cast<std::size_t>(ItemSize(view.dtype)));
    WriteElements(view, [&](Bytes bytes) {
      content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return true;
    });
    status = AddArray(zip.get(), file.path(), name, content);
    if (!status.ok()) return status;
  }
  if (zip_close(zip.get()) != 0) {
    return file.error() != 0 ? file.Commit() : failed(zip_strerror(zip.get()));
  }
  zip.release();
  return {};
}

}  // namespace flashwok::io
