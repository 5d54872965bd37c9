#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace flashwok::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

// The temporary files at this moment, for a signal handler: it may call neither new nor a lock.
constexpr std::size_t kMaxFiles = 8;
std::atomic<const char*> temporaries[kMaxFiles];

void Exchange(const char* from, const char* to) {
  for (std::atomic<const char*>& slot : temporaries) {
    const char* expected = from;
    if (slot.compare_exchange_strong(expected, to)) return;
  }
}

void RemoveAndEnd(int signal) {
  for (std::atomic<const char*>& slot : temporaries) {
    if (const char* name = slot.load()) ::unlink(name);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void OutputFile::RemoveOnSignals() {
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    if (std::signal(signal, RemoveAndEnd) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  Exchange(temporary_.c_str(), nullptr);
}

Status OutputFile::Create() {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), counter++);
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) {
      temporary_ = name;
      Exchange(nullptr, temporary_.c_str());
      buffer_.reserve(kBufferBytes);
      return {};
    }
    if (errno != EEXIST) break;
  }
  return Failed(errno);
}

bool OutputFile::Append(Bytes bytes) {
  if (bytes.size() > kBufferBytes - buffer_.size() && !Flush()) return false;
  if (bytes.size() >= kBufferBytes) return Write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return error_ == 0;
}

bool OutputFile::Flush() {
  const bool good = Write(buffer_);
  buffer_.clear();
  return good;
}

bool OutputFile::Write(Bytes bytes) {
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      error_ = errno;
    } else {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  return error_ == 0;
}

bool OutputFile::WriteAt(std::uint64_t offset, Bytes bytes) {
  if (error_ == 0 && ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0) error_ = errno;
  return Write(bytes);
}

Status OutputFile::Commit() {
  if (Flush() && ::fsync(descriptor_) != 0) error_ = errno;
  if (::close(descriptor_) != 0 && error_ == 0) error_ = errno;
  descriptor_ = -1;
  if (error_ == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
  if (error_ != 0) return Failed(error_);
  Exchange(temporary_.c_str(), nullptr);
  temporary_.clear();
  return {};
}

Status OutputFile::Failed(int error) const {
  return Status::Invalid(path_ + ": cannot be written: " + std::strerror(error));
}

}  // namespace flashwok::io
