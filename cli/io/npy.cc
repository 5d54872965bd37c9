// The .npy format, versions 1 to 3 (numpy.lib.format): a magic string, a header that is a Python
// dict, then the elements.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include "io/tensor_file.h"

namespace flashwok::io {
namespace {

constexpr std::size_t kMaxHeader = 1 << 20;
constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  DType dtype = DType::kFloat32;
  std::size_t item_size = 0;  // in the file; 8 for int64, which becomes int32
  bool swap = false;
  bool fortran = false;
  std::vector<std::int64_t> shape;
  std::size_t data = 0;  // offset of the elements
};

// Reads the dict's few forms from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool Take(char expected) {
    Spaces();
    if (text_.empty() || text_.front() != expected) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool TakeWord(std::string_view word) {
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
    *value = std::string(text_.substr(1, end - 1));
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
  bool AtEnd() {
    Spaces();
    return text_.empty();
  }

 private:
  void Spaces() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) {
      text_.remove_prefix(1);
    }
  }
  std::string_view text_;
};

Status SetDescr(const std::string& what, const std::string& descr, Header* header) {
  const std::string kind = descr.empty() ? "" : descr.substr(1);
  const char order = descr.empty() ? '?' : descr[0];
  if (kind == "f4") {
    header->dtype = DType::kFloat32;
  } else if (kind == "f2") {
    header->dtype = DType::kFloat16;
  } else if (kind == "b1") {
    header->dtype = DType::kBool;
  } else if (kind == "i4" || kind == "i8") {
    header->dtype = DType::kInt32;
  } else if (kind == "f8") {
    return Status::Invalid(what + ": dtype float64 is not supported; save the array as float32");
  } else {
    return Status::Invalid(fmt::format("{}: dtype '{}' is not one of float32, float16, bool, int32, "
                                       "int64",
                                       what, descr.substr(0, 32)));
  }
  if (order != '<' && order != '>' && order != '=' && order != '|') {
    return Status::Invalid(fmt::format("{}: byte order '{}' is not known", what, order));
  }
  header->item_size = static_cast<std::size_t>(kind[1] - '0');
  header->swap = header->item_size > 1 && order == '>';
  return {};
}

bool ParseShape(Cursor& cursor, std::vector<std::int64_t>* shape) {
  if (!cursor.Take('(')) return false;
  while (!cursor.Take(')')) {
    std::int64_t extent = 0;
    if (shape->size() > 64 || !cursor.TakeInteger(&extent)) return false;
    shape->push_back(extent);
    if (!cursor.Take(',')) return cursor.Take(')');
  }
  return true;
}

Status ParseDict(const std::string& what, std::string_view text, Header* header) {
  const Status bad = Status::Invalid(what + ": the .npy header is not a dict of descr, "
                                            "fortran_order and shape");
  Cursor cursor(text);
  if (!cursor.Take('{')) return bad;
  std::string descr;
  bool seen[3] = {false, false, false};
  while (!cursor.Take('}')) {
    std::string key;
    if (!cursor.TakeString(&key) || !cursor.Take(':')) return bad;
    const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
    if (which == 3 || seen[which]) return bad;
    seen[which] = true;
    if (which == 0 && !cursor.TakeString(&descr)) {
      return Status::Invalid(what + ": structured dtypes are not supported");
    }
    if (which == 1) {
      header->fortran = cursor.TakeWord("True");
      if (!header->fortran && !cursor.TakeWord("False")) return bad;
    }
    if (which == 2 && !ParseShape(cursor, &header->shape)) return bad;
    if (!cursor.Take(',')) {
      if (!cursor.Take('}')) return bad;
      break;
    }
  }
  if (!cursor.AtEnd() || !seen[0] || !seen[1] || !seen[2]) return bad;
  return SetDescr(what, descr, header);
}

Status ParseHeader(Bytes file, const std::string& what, Header* header) {
  const auto* text = reinterpret_cast<const char*>(file.data());
  if (file.size() < 10 || std::string_view(text, kMagic.size()) != kMagic) {
    return Status::Invalid(what + ": not a .npy file (no \\x93NUMPY at its start)");
  }
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3) {
    return Status::Invalid(fmt::format("{}: .npy version {} is not 1, 2 or 3", what, version));
  }
  const std::size_t length_size = version == 1 ? 2 : 4;
  const std::size_t start = 8 + length_size;
  if (file.size() < start) return Status::Invalid(what + ": the .npy header is cut off");
  std::size_t length = 0;
  for (std::size_t n = 0; n < length_size; ++n) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(text[8 + n])) << (8 * n);
  }
  if (length > kMaxHeader || length > file.size() - start) {
    return Status::Invalid(fmt::format("{}: a .npy header of {} bytes, the limit is {}", what, length,
                                       std::min(kMaxHeader, file.size() - start)));
  }
  header->data = start + length;
  Status status = ParseDict(what, std::string_view(text + start, length), header);
  if (!status.ok()) return status;
  std::size_t bytes = 0;
  status = CheckedBytes(what, header->shape, header->item_size, &bytes);
  if (status.ok() && bytes != file.size() - header->data) {
    status = Status::Invalid(fmt::format("{}: the header promises {} bytes of elements, the file "
                                         "has {}",
                                         what, bytes, file.size() - header->data));
  }
  return status;
}

// Element `index` of the file, in the machine's byte order.
std::uint64_t Element(const std::byte* elements, const Header& header, std::size_t index) {
  std::byte raw[8] = {};
  std::memcpy(raw, elements + index * header.item_size, header.item_size);
  if (header.swap) std::reverse(raw, raw + header.item_size);
  std::uint64_t value = 0;
  std::memcpy(&value, raw, sizeof(value));
  return value;
}

// Where the row-major element `index` stands in Fortran order.
std::size_t FortranIndex(const std::vector<std::int64_t>& shape, std::size_t index) {
  std::size_t position = 0;
  std::size_t stride = 1;
  std::size_t divisor = 1;
  for (std::int64_t extent : shape) divisor *= static_cast<std::size_t>(extent);
  for (std::int64_t extent : shape) {
    divisor /= static_cast<std::size_t>(extent);
    position += index / divisor % static_cast<std::size_t>(extent) * stride;
    stride *= static_cast<std::size_t>(extent);
  }
  return position;
}

}  // namespace

Status ListNpy(Bytes file, const std::string& what, TensorEntry* entry) {
  Header header;
  Status status = ParseHeader(file, what, &header);
  entry->dtype = header.dtype;
  entry->shape = header.shape;
  return status;
}

Status ParseNpy(Bytes file, const std::string& what, HostTensor* tensor) {
  Header header;
  if (Status status = ParseHeader(file, what, &header); !status.ok()) return status;
  *tensor = HostTensor::Make(header.dtype, header.shape);
  const std::byte* elements = file.data() + header.data;
  const auto item = static_cast<std::size_t>(ItemSize(header.dtype));
  if (!header.swap && !header.fortran && item == header.item_size) {
    if (tensor->num_bytes() > 0) std::memcpy(tensor->data(), elements, tensor->num_bytes());
    return {};
  }
  for (std::size_t n = 0; n * item < tensor->num_bytes(); ++n) {
    const std::size_t from = header.fortran ? FortranIndex(header.shape, n) : n;
    std::uint64_t value = Element(elements, header, from);
    if (header.item_size == 8) {
      const auto wide = static_cast<std::int64_t>(value);
      if (wide != static_cast<std::int32_t>(wide)) {
        return Status::Invalid(fmt::format("{}: element {} is {}, outside int32", what, n, wide));
      }
    }
    std::memcpy(tensor->data() + n * item, &value, item);
  }
  return {};
}

Status FormatNpy(const HostTensor& tensor, const std::string& what, std::string* file) {
  static_assert(std::endian::native == std::endian::little);
  std::string descr;
  switch (tensor.dtype()) {
    case DType::kFloat32: descr = "<f4"; break;
    case DType::kFloat16: descr = "<f2"; break;
    case DType::kBool: descr = "|b1"; break;
    case DType::kInt32: descr = "<i4"; break;
    default:
      return Status::Invalid(fmt::format("{}: .npy has no dtype {}; use .safetensors", what,
                                         Name(tensor.dtype())));
  }
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                                 descr, fmt::join(tensor.shape(), ", "));
  dict.append(63 - (10 + dict.size()) % 64, ' ');
  dict += '\n';
  *file = std::string(kMagic) + '\x01' + '\x00';
  *file += static_cast<char>(dict.size() & 0xFF);
  *file += static_cast<char>(dict.size() >> 8);
  *file += dict;
  file->append(reinterpret_cast<const char*>(tensor.data()), tensor.num_bytes());
  return {};
}

}  // namespace flashwok::io
