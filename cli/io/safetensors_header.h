// The JSON header of a .safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashwok::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in the data
};

// Parses without building a document, so that memory stays near the header's size. False with
// `problem` set, which follows the file's name.
bool ParseSafetensorsHeader(std::string_view text, std::vector<SafetensorsEntry>* entries,
                            std::string* problem);

}  // namespace flashwok::io
