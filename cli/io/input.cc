#include "io/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace flashwok::io {

Status MemoryInput::Read(std::uint64_t offset, std::span<std::byte> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return Invalid("read past the end");
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return {};
}

Status FileInput::Open(const std::string& path, std::unique_ptr<FileInput>* input) {
  const auto failed = [&] { return Status::Invalid(path + ": " + std::strerror(errno)); };
  // Without O_NONBLOCK the open of a pipe would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return failed();
  input->reset(new FileInput(path, descriptor));
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return failed();
  if (!S_ISREG(info.st_mode)) return (*input)->Invalid("not a regular file");
  (*input)->size_ = static_cast<std::uint64_t>(info.st_size);
  return {};
}

FileInput::~FileInput() { ::close(descriptor_); }

Status FileInput::Read(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Invalid(std::strerror(errno));
    if (count == 0) return Invalid("the file shrank while it was read");
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

std::string Quoted(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  const bool cut = text.size() > kLongest;
  if (cut) {
    std::size_t end = kLongest;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
    text = text.substr(0, end);
  }
  std::string quoted = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    quoted += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return quoted + (cut ? "...'" : "'");
}

std::string QuotedList(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  if (names.empty()) return "none";
  std::string list;
  for (std::size_t n = 0; n < std::min(names.size(), kMost); ++n) {
    list += (n == 0 ? "" : ", ") + Quoted(names[n]);
  }
  if (names.size() > kMost) list += " and " + std::to_string(names.size() - kMost) + " more";
  return list;
}

}  // namespace flashwok::io
