// The header of a .npy file: a Python dict of three keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashwok::io {

struct NpyDict {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// False with `problem` set, which follows "the .npy header".
bool ParseNpyDict(std::string_view text, NpyDict* dict, std::string* problem);

}  // namespace flashwok::io
