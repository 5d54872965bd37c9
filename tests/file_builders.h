// Files of the three formats made by hand, sound or broken, and a folder for them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_file.h"

namespace flashwok::io {

// The bytes of a value, little end first unless `big`.
template <class T>
std::string Raw(T value, bool big = false) {
  std::string bytes(reinterpret_cast<const char*>(&value), sizeof(value));
  return big ? std::string(bytes.rbegin(), bytes.rend()) : bytes;
}
template <class T>
std::string RawAll(const std::vector<T>& values, bool big = false) {
  std::string bytes;
  for (const T& value : values) bytes += Raw(value, big);
  return bytes;
}

inline std::string NpyDictText(const std::string& descr, const std::string& shape,
                               const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}
inline std::string NpyOf(const std::string& dict, const std::string& data, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  file += version == 1 ? Raw(static_cast<std::uint16_t>(dict.size()))
                       : Raw(static_cast<std::uint32_t>(dict.size()));
  return file + dict + data;
}

struct ZipItem {
  std::string name, data;
  bool deflate = false;       // as one block that is not compressed
  std::int64_t size = -1;     // of the directory, when it is to lie
  std::uint32_t spoil = 0;    // changes the check sum
  std::uint16_t method = 99;  // 99: by `deflate`
};

inline std::uint32_t Crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

inline std::string ZipOf(const std::vector<ZipItem>& items) {
  const auto raw16 = [](std::size_t value) { return Raw(static_cast<std::uint16_t>(value)); };
  const auto raw32 = [](std::size_t value) { return Raw(static_cast<std::uint32_t>(value)); };
  std::string file, directory;
  for (const ZipItem& item : items) {
    const auto length = static_cast<std::uint16_t>(item.data.size());
    std::string packed = item.data;
    if (item.deflate) {
      const auto inverse = static_cast<std::uint16_t>(~length);
      packed = std::string("\x01") + Raw(length) + Raw(inverse) + item.data;
    }
    const std::size_t method = item.method != 99 ? item.method : item.deflate ? 8 : 0;
    const std::size_t size =
        item.size >= 0 ? static_cast<std::size_t>(item.size) : item.data.size();
    const std::string common = raw16(20) + raw16(0) + raw16(method) + raw32(0x00210000) +
                               raw32(Crc32(item.data) ^ item.spoil) + raw32(packed.size()) +
                               raw32(size) + raw16(item.name.size()) + raw16(0);
    directory += "PK\x01\x02" + raw16(20) + common + raw16(0) + raw16(0) + raw16(0) + raw32(0) +
                 raw32(file.size()) + item.name;
    file += "PK\x03\x04" + common + item.name + packed;
  }
  return file + directory + "PK\x05\x06" + raw16(0) + raw16(0) + raw16(items.size()) +
         raw16(items.size()) + raw32(directory.size()) + raw32(file.size()) + raw16(0);
}

inline std::string SafetensorsOf(const std::string& header, const std::string& data) {
  return Raw(static_cast<std::uint64_t>(header.size())) + header + data;
}

inline Bytes AsBytes(const std::string& file) { return std::as_bytes(std::span(file)); }

inline std::vector<std::string> FilesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

// Gives each test a folder of its own.
class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "flashwok-io-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Put(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  std::string Get(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder_;
};

// The tensor's elements, which must be `T`s.
template <class T>
std::vector<T> Values(const HostTensor& tensor) {
  std::vector<T> values(tensor.num_bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.data(), tensor.num_bytes());
  return values;
}

}  // namespace flashwok::io
