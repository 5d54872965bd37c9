// A file that appears under its name when it is whole, or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace flashwok::io {

class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // From now on a signal that ends the process takes the temporary files with it.
  static void RemoveOnSignals();

  // Makes the temporary file beside the target.
  Status Create();
  // False after a failure, which Commit reports.
  bool Append(Bytes bytes);
  // Writes anywhere instead, beside no Append.
  bool WriteAt(std::uint64_t offset, Bytes bytes);
  int error() const { return error_; }  // errno of the failure, or 0
  // Syncs the temporary file and renames it to the target.
  Status Commit();

  const std::string& path() const { return path_; }

 private:
  bool Flush();
  bool Write(Bytes bytes);
  Status Failed(int error) const;

  std::string path_;
  std::string temporary_;  // empty when there is none
  std::vector<std::byte> buffer_;
  int descriptor_ = -1;
  int error_ = 0;
};

}  // namespace flashwok::io
