// The .npy format, versions 1 to 3 (numpy.lib.format): a magic string, a header that is a Python
// dict, then the elements.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "io/formats.h"
#include "io/npy_dict.h"

namespace flashwok::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaxHeader = 1 << 20;
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kPreamble = 10;  // magic, version and the first 2 bytes of the length

struct Header {
  DType dtype = DType::kFloat32;
  FileLayout layout;
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;  // their offset
};

Status SetDType(const Input& input, const std::string& descr, Header* header) {
  const char order = descr.empty() ? '?' : descr[0];
  const std::string kind = descr.empty() ? "" : descr.substr(1);
  if (kind == "f4") {
    header->dtype = DType::kFloat32;
  } else if (kind == "f2") {
    header->dtype = DType::kFloat16;
  } else if (kind == "b1") {
    header->dtype = DType::kBool;
  } else if (kind == "i4" || kind == "i8") {
    header->dtype = DType::kInt32;
  } else if (kind == "f8") {
    return input.Invalid("dtype float64 is not read; save the array as float32");
  } else if (kind.starts_with('O')) {
    return input.Invalid("object arrays are not read; save the array as float32");
  } else if (kind.starts_with('V')) {
    return input.Invalid("dtype " + Quoted(descr) +
                         " is raw bytes; save bfloat16 and float8 arrays as .safetensors");
  } else {
    return input.Invalid("dtype " + Quoted(descr) +
                         " is not read, must be float32, float16, bool, int32 or int64");
  }
  header->layout.item_size = static_cast<std::size_t>(kind[1] - '0');
  const bool bytes = header->layout.item_size == 1;
  if (order != '<' && order != '>' && order != '=' && !(order == '|' && bytes)) {
    return input.Invalid("dtype " + Quoted(descr) + " has no byte order '<', '>' or '='");
  }
  header->layout.swap = order == '>' && !bytes;
  return {};
}

// The dict's text. Reads forwards only, as an archive's entry asks for.
Status ReadDict(Input& input, std::string* dict, std::uint64_t* end) {
  unsigned char start[kPreamble + 2] = {};
  if (input.size() < kPreamble) {
    return input.Invalid(
        fmt::format("{} bytes, a .npy file has at least {}", input.size(), kPreamble));
  }
  Status status = input.Read(0, std::as_writable_bytes(std::span(start).first(kPreamble)));
  if (!status.ok()) return status;
  if (std::string_view(reinterpret_cast<const char*>(start), kMagic.size()) != kMagic) {
    return input.Invalid("not a .npy file, which starts with \\x93NUMPY");
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    return input.Invalid(fmt::format(".npy version {}, must be 1, 2 or 3", version));
  }
  *end = version == 1 ? kPreamble : kPreamble + 2;
  if (input.size() < *end) return input.Invalid("the .npy header is cut short");
  if (version > 1) {
    status = input.Read(kPreamble, std::as_writable_bytes(std::span(start).last(2)));
    if (!status.ok()) return status;
  }
  const std::uint64_t length =
      start[8] | start[9] << 8 | start[10] << 16 | static_cast<std::uint64_t>(start[11]) << 24;
  const std::uint64_t limit = std::min(kMaxHeader, input.size() - *end);
  if (length > limit) {
    return input.Invalid(fmt::format("a .npy header of {} bytes, the limit is {}", length, limit));
  }
  dict->resize(length);
  status = input.Read(*end, std::as_writable_bytes(std::span(*dict)));
  *end += length;
  return status;
}

Status ReadHeader(Input& input, Header* header) {
  std::string text;
  NpyDict dict;
  std::string problem;
  Status status = ReadDict(input, &text, &header->elements);
  if (!status.ok()) return status;
  if (!ParseNpyDict(text, &dict, &problem)) return input.Invalid("the .npy header " + problem);
  status = SetDType(input, dict.descr, header);
  if (!status.ok()) return status;
  header->layout.fortran = dict.fortran_order;
  header->shape = std::move(dict.shape);
  status = CheckRank(input.what(), header->shape);
  if (!status.ok()) return status;
  std::uint64_t bytes = 0;
  status = CheckedBytes(input.what(), header->shape, header->layout.item_size, &bytes);
  if (!status.ok()) return status;
  const std::uint64_t present = input.size() - header->elements;
  if (bytes == present) return {};
  return input.Invalid(fmt::format("shape [{}] needs {} bytes of elements, the file has {}",
                                   fmt::join(header->shape, ", "), bytes, present));
}

}  // namespace

Status ListNpy(Input& input, TensorEntry* entry) {
  Header header;
  Status status = ReadHeader(input, &header);
  entry->dtype = header.dtype;
  entry->shape = std::move(header.shape);
  return status;
}

Status ReadNpy(Input& input, HostTensor* tensor) {
  Header header;
  Status status = ReadHeader(input, &header);
  if (!status.ok()) return status;
  return ReadElements(input, input.what(), header.elements, header.dtype, header.shape,
                      header.layout, tensor);
}

Status NpyHeader(const Tensor& view, const std::string& what, std::string* header) {
  const char* descr = nullptr;
  switch (view.dtype) {
    case DType::kFloat32: descr = "<f4"; break;
    case DType::kFloat16: descr = "<f2"; break;
    case DType::kBool: descr = "|b1"; break;
    case DType::kInt32: descr = "<i4"; break;
    default:
      return Status::Invalid(
          fmt::format("{}: .npy has no dtype {}; write .safetensors", what, Name(view.dtype)));
  }
  const auto* shape = view.shape.data();
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                                 descr, fmt::join(shape, shape + view.rank, ", "));
  dict.append(63 - (kPreamble + dict.size()) % 64, ' ');  // the elements start at a multiple of 64
  dict += '\n';
  *header = std::string(kMagic) + '\x01' + '\x00';
  *header += static_cast<char>(dict.size() & 0xFF);
  *header += static_cast<char>(dict.size() >> 8);
  *header += dict;
  return {};
}

}  // namespace flashwok::io
