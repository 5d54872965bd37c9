#include "io/npy_dict.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "io/input.h"

namespace flashwok::io {
namespace {

constexpr std::string_view kKeys[] = {"descr", "fortran_order", "shape"};
constexpr std::size_t kMaxAxes = 64;

// Takes the few forms of the dict from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool Take(std::string_view word) {
    Spaces();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool TakeString(std::string* value) {
    Spaces();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return false;
    const std::size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return false;
    *value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool TakeInteger(std::int64_t* value) {
    Spaces();
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), *value);
    if (error != std::errc()) return false;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return true;
  }
  // "(2, 3)"; one axis is "(2,)".
  bool TakeShape(std::vector<std::int64_t>* shape) {
    if (!Take("(")) return false;
    while (!Take(")")) {
      std::int64_t extent = 0;
      if (shape->size() == kMaxAxes || !TakeInteger(&extent)) return false;
      shape->push_back(extent);
      if (!Take(",")) return shape->size() > 1 && Take(")");
    }
    return true;
  }
  bool AtEnd() {
    Spaces();
    return text_.empty();
  }

 private:
  void Spaces() { text_.remove_prefix(std::min(text_.find_first_not_of(" \n"), text_.size())); }
  std::string_view text_;
};

bool TakeValue(Cursor& cursor, std::size_t key, NpyDict* dict, std::string* problem) {
  switch (key) {
    case 0:
      *problem = "describes a structured dtype, which is not read; save each field by itself";
      return cursor.TakeString(&dict->descr);
    case 1:
      *problem = "has a fortran_order that is not True or False";
      dict->fortran_order = cursor.Take("True");
      return dict->fortran_order || cursor.Take("False");
    default:
      *problem = "has a shape that is not a tuple of at most 64 integers of 64 bits";
      return cursor.TakeShape(&dict->shape);
  }
}

}  // namespace

bool ParseNpyDict(std::string_view text, NpyDict* dict, std::string* problem) {
  const char* const malformed = "is not a dict of descr, fortran_order and shape";
  Cursor cursor(text);
  bool seen[std::size(kKeys)] = {};
  bool closed = false;
  *problem = malformed;
  if (!cursor.Take("{")) return false;
  while (!(closed = cursor.Take("}"))) {
    std::string name;
    if (!cursor.TakeString(&name) || !cursor.Take(":")) return false;
    const auto* known = std::find(std::begin(kKeys), std::end(kKeys), name);
    if (known == std::end(kKeys)) {
      *problem = "has the unknown key " + Quoted(name);
      return false;
    }
    const auto key = static_cast<std::size_t>(known - std::begin(kKeys));
    if (seen[key]) {
      *problem = "has the key " + Quoted(name) + " twice";
      return false;
    }
    seen[key] = true;
    if (!TakeValue(cursor, key, dict, problem)) return false;
    *problem = malformed;
    if (!cursor.Take(",")) {
      closed = cursor.Take("}");
      break;
    }
  }
  return closed && cursor.AtEnd() && seen[0] && seen[1] && seen[2];
}

}  // namespace flashwok::io
