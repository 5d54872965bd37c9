#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/input.h"

namespace flashwok::io {
namespace {

using Json = nlohmann::json;

// Follows the header's one form: {name: {"dtype": text, "shape": [sizes], "data_offsets": [begin,
// end]}, "__metadata__": {text: text}}. Everything else ends the parsing, deep nesting first.
class Handler : public nlohmann::json_sax<Json> {
 public:
  Handler(std::vector<SafetensorsEntry>* entries, std::string* problem)
      : entries_(entries), problem_(problem) {}

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected("the number " + Quoted(text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return Fail(fmt::format("an axis of {}, the limit is 2^63 - 1", value));
      }
      entries_->back().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) return Unexpected(fmt::format("the number {}", value));
    if (offsets_ == 2) return Fail("more than 2 data_offsets");
    (offsets_++ == 0 ? entries_->back().begin : entries_->back().end) = value;
    return true;
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != kDType) return Unexpected("the text " + Quoted(text));
    entries_->back().dtype = text;
    return true;
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = metadata_ ? Place::kMetadata : Place::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor && (seen_ != kAllFields || offsets_ != 2)) {
      return Fail("not described by dtype, shape and 2 data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == kDType) return Unexpected("a list");
    place_ = field_ == kShape ? Place::kShape : Place::kOffsets;
    return true;
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }
  bool key(string_t& name) override {
    if (place_ == Place::kTensor) return TakeField(name);
    if (place_ != Place::kTop) return true;
    metadata_ = name == "__metadata__";
    if (metadata_ && metadata_seen_) return Fail("given twice");
    metadata_seen_ = metadata_seen_ || metadata_;
    if (metadata_) return true;
    entries_->emplace_back().name = name;
    seen_ = 0;
    offsets_ = 0;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    *problem_ = fmt::format("the .safetensors header is not JSON at its byte {}", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kTensor, kMetadata, kShape, kOffsets, kEnd };
  static constexpr unsigned kDType = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  bool TakeField(const std::string& name) {
    field_ = name == "dtype"          ? kDType
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) return Fail("the unknown key " + Quoted(name));
    if ((seen_ & field_) != 0) return Fail("two keys " + Quoted(name));
    seen_ |= field_;
    return true;
  }
  bool Unexpected(const std::string& value) {
    return Fail(value + " where the .safetensors header has none");
  }
  bool Fail(const std::string& what) {
    if (metadata_) {
      *problem_ = "__metadata__: " + what;
    } else if (entries_->empty()) {
      *problem_ = what;
    } else {
      *problem_ = "tensor " + Quoted(entries_->back().name) + ": " + what;
    }
    return false;
  }

  std::vector<SafetensorsEntry>* entries_;
  std::string* problem_;
  Place place_ = Place::kStart;
  unsigned field_ = 0, seen_ = 0;
  int offsets_ = 0;
  bool metadata_ = false, metadata_seen_ = false;
};

}  // namespace

bool ParseSafetensorsHeader(std::string_view text, std::vector<SafetensorsEntry>* entries,
                            std::string* problem) {
  if (!text.starts_with('{')) {
    *problem = "the .safetensors header does not start with '{'";
    return false;
  }
  Handler handler(entries, problem);
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) return false;
  std::vector<std::string_view> names;
  for (const SafetensorsEntry& entry : *entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return true;
  *problem = "two tensors are named " + Quoted(*twice);
  return false;
}

}  // namespace flashwok::io
