// Where a reader's bytes come from: a file, memory, or an entry of an archive.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "io/tensor_file.h"

namespace flashwok::io {

class Input {
 public:
  explicit Input(std::string what) : what_(std::move(what)) {}
  virtual ~Input() = default;

  // Names the source in messages: the file, and the array when the source is one.
  const std::string& what() const { return what_; }
  virtual std::uint64_t size() const = 0;
  // Fills `out` from `offset`. The range must lie within size().
  virtual Status Read(std::uint64_t offset, std::span<std::byte> out) = 0;

  Status Invalid(const std::string& message) const {
    return Status::Invalid(what_ + ": " + message);
  }

 private:
  std::string what_;
};

class MemoryInput : public Input {
 public:
  MemoryInput(Bytes bytes, std::string what) : Input(std::move(what)), bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Status Read(std::uint64_t offset, std::span<std::byte> out) override;
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class FileInput : public Input {
 public:
  static Status Open(const std::string& path, std::unique_ptr<FileInput>* input);
  ~FileInput() override;
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;

  std::uint64_t size() const override { return size_; }
  Status Read(std::uint64_t offset, std::span<std::byte> out) override;
  int descriptor() const { return descriptor_; }

 private:
  FileInput(const std::string& path, int descriptor) : Input(path), descriptor_(descriptor) {}
  int descriptor_;
  std::uint64_t size_ = 0;
};

// Text from a file, fit for a message: in quotes, on one line, not too long.
std::string Quoted(std::string_view text);
// The first few of many names, quoted.
std::string QuotedList(const std::vector<std::string>& names);

}  // namespace flashwok::io
