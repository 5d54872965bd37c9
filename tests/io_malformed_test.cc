// Broken files: each kind is refused by one line that names the file and the problem, and the
// output stays as it was.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/file_builders.h"

namespace flashwok::io {
namespace {

struct Broken {
  const char* what;
  std::string file;
  const char* problem;  // part of the message
};

class IoMalformed : public FileTest {
 protected:
  void ExpectRefused(const std::string& name, const std::vector<Broken>& files,
                     const std::string& tensor_name = "") {
    for (const auto& [what, file, problem] : files) {
      SCOPED_TRACE(what);
      const std::string path = Put(name, file);
      for (const bool in_memory : {false, true}) {
        HostTensor tensor;
        const Status status = in_memory ? ReadTensor(AsBytes(file), path, tensor_name, &tensor)
                                        : ReadTensor(path, tensor_name, &tensor);
        const std::string& message = status.message();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_TRUE(message.starts_with(path + ": ")) << message;
        EXPECT_NE(message.find(problem), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_EQ(tensor.data(), nullptr);
      }
    }
  }
};

std::string Npy(const std::string& descr, const std::string& shape, std::size_t bytes) {
  return NpyOf(NpyDictText(descr, shape), std::string(bytes, '\0'));
}

TEST_F(IoMalformed, NpyStructure) {
  const std::string sound = Npy("'<f4'", "(2,)", 8);
  std::string long_header = sound, huge_header = NpyOf(NpyDictText("'<f4'", "(2,)"), "", 2);
  long_header[8] = '\xFF', long_header[9] = '\xFF';
  std::fill_n(huge_header.begin() + 8, 4, '\xFF');
  std::string axes;
  for (int n = 0; n < 65; ++n) axes += "1,";
  ExpectRefused(
      "x.npy",
      {{"empty", "", "0 bytes, a .npy file has at least 10"},
       {"magic", "PK" + sound.substr(2), "starts with \\x93NUMPY"},
       {"version 0", NpyOf("{}", "", 0), "version 0, must be 1, 2 or 3"},
       {"version 4", NpyOf("{}", "", 4), "version 4, must be 1, 2 or 3"},
       {"length cut", NpyOf("", "", 2).substr(0, 11), "cut short"},
       {"header past the end", long_header, "a .npy header of 65535 bytes, the limit is "},
       {"header of 4 GB", huge_header, "a .npy header of 4294967295 bytes, the limit is "},
       {"no dict", NpyOf("[]", ""), "not a dict"},
       {"not closed", NpyOf("{'descr': '<f4', ", ""), "not a dict"},
       {"words after", NpyOf("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", ""),
        "not a dict"},
       {"no shape", NpyOf("{'descr': '<f4', 'fortran_order': False}", ""), "not a dict"},
       {"unknown key", NpyOf("{'or\ner': 1}", ""), "the unknown key 'or?er'"},
       {"key twice", NpyOf("{'descr': '<f4', 'descr': '<f4'}", ""), "'descr' twice"},
       {"fortran_order", NpyOf(NpyDictText("'<f4'", "(2,)", "1"), ""), "fortran_order"},
       {"no tuple", Npy("'<f4'", "(2)", 8), "not a tuple"},
       {"65 axes", Npy("'<f4'", "(" + axes + ")", 4), "not a tuple"},
       {"axis over 64 bits", Npy("'<f4'", "(99999999999999999999,)", 8), "not a tuple"}});
}

TEST_F(IoMalformed, NpyValues) {
  ExpectRefused(
      "x.npy",
      {{"negative axis", Npy("'<f4'", "(-2,)", 8), "an axis of -2, must be 0 or more"},
       {"scalar", Npy("'<f4'", "()", 4), "0 axes, the limits are 1 and 4"},
       {"rank 5", Npy("'<f4'", "(1, 1, 1, 1, 1)", 4), "5 axes, the limits are 1 and 4"},
       {"product", Npy("'<f4'", "(4294967296, 4294967296)", 0), "the limit is 2^63 - 1 bytes"},
       {"product behind 0", Npy("'<f4'", "(0, 4294967296, 4294967296)", 0), "the limit is 2^63"},
       {"too short", Npy("'<f4'", "(3,)", 8), "needs 12 bytes of elements, the file has 8"},
       {"too long", Npy("'<f4'", "(1,)", 8), "needs 4 bytes of elements, the file has 8"},
       {"1 TB", Npy("'<f4'", "(274877906944,)", 8), "needs 1099511627776 bytes of elements"},
       {"float64", Npy("'<f8'", "(1,)", 8), "save the array as float32"},
       {"object", Npy("'|O'", "(1,)", 8), "object arrays are not read"},
       {"raw bytes", Npy("'<V2'", "(1,)", 2), "'<V2' is raw bytes"},
       {"structured", Npy("[('a', '<f4')]", "(1,)", 4), "structured dtype"},
       {"uint8", Npy("'|u1'", "(1,)", 1), "'|u1' is not read"},
       {"complex", Npy("'<c8'", "(1,)", 8), "'<c8' is not read"},
       {"no descr", Npy("''", "(1,)", 4), "'' is not read"},
       {"byte order", Npy("'!f4'", "(1,)", 4), "no byte order"},
       {"no byte order", Npy("'|f4'", "(1,)", 4), "no byte order"},
       {"int64 too large",
        NpyOf(NpyDictText("'<i8'", "(2,)"), RawAll<std::int64_t>({1, 2147483648LL})),
        "element 1 is 2147483648, the limits of int32"}});
  const std::string named = Put("x.npy", Npy("'<f4'", "(1,)", 4));
  HostTensor tensor;
  EXPECT_NE(ReadTensor(named, "q", &tensor).message().find("no array 'q'"), std::string::npos);
}

TEST_F(IoMalformed, Npz) {
  const std::string array = Npy("'<f4'", "(2,)", 8);
  const std::string sound = ZipOf({{"x.npy", array}});
  std::string shared = ZipOf({{"x.npy", array}, {"y.npy", array}});
  std::string bomb = ZipOf({{"x.npy", array, true, std::int64_t{1} << 30}});
  std::vector<ZipItem> many(4097);
  for (std::size_t n = 0; n < many.size(); ++n) many[n].name = std::to_string(n);
  ExpectRefused(
      "x.npz",
      {{"empty", "", "not a sound zip archive"},
       {"no zip", "what is this, which is no archive", "not a sound zip archive"},
       {"cut short", sound.substr(0, sound.size() - 30), "not a sound zip archive"},
       {"twice", ZipOf({{"x.npy", array}, {"x.npy", array}}), "two arrays have the same name"},
       {"with and without", ZipOf({{"x.npy", array}, {"x", array}}), "two arrays are named 'x'"},
       {"not an array", ZipOf({{"x.npy", "some words, no array"}}), "array 'x': not a .npy file"},
       {"check sum", ZipOf({{"x.npy", array, false, -1, 1}}),
        "array 'x': the zip entry is damaged"},
       {"bomb", bomb, "array 'x': 1073741824 bytes unpacked from"},
       {"too small a size", ZipOf({{"x.npy", array, true, std::ssize(array) - 8}}), "array 'x': "},
       {"too large a size", ZipOf({{"x.npy", array, true, std::ssize(array) + 8}}), "array 'x': "},
       {"method", ZipOf({{"x.npy", array, false, -1, 0, 12}}), "compression method 12, must be"},
       {"too many", ZipOf(many), "4097 arrays, the limit is 4096"},
       {"none", ZipOf({}), "no array '', the file has none"},
       {"name of two lines", ZipOf({{"a\nb.npy", "no array, none"}}), "array 'a?b': "},
       {"float64", ZipOf({{"x.npy", Npy("'<f8'", "(1,)", 8)}}), "array 'x': dtype float64"}});
  std::string twice_used = shared;  // the second entry's place becomes the first's
  const std::size_t second = twice_used.rfind("PK\x01\x02");
  std::fill_n(twice_used.begin() + static_cast<std::ptrdiff_t>(second) + 42, 4, '\0');
  HostTensor tensor;
  EXPECT_FALSE(ReadTensor(Put("x.npz", twice_used), "y", &tensor).ok());
}

std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t bytes = 8) {
  return SafetensorsOf(
      R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
      std::string(bytes, '\0'));
}

TEST_F(IoMalformed, SafetensorsStructure) {
  const std::string deep(100'000, '[');
  const std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  ExpectRefused(
      "x.safetensors",
      {{"empty", "", "0 bytes, a .safetensors file has at least 8"},
       {"past the end", Raw<std::uint64_t>(9) + "{}", "header of 9 bytes, the limit is 2"},
       {"2^64 - 1", Raw<std::uint64_t>(-1) + "{}", "header of 18446744073709551615 bytes"},
       {"no brace", SafetensorsOf(" {}", ""), "does not start with '{'"},
       {"no JSON", SafetensorsOf("{\"x\": nonsense}", ""), "not JSON at its byte "},
       {"not UTF-8", SafetensorsOf("{\"\xFF\": {}}", ""), "not JSON at its byte "},
       {"after the end", SafetensorsOf("{}{}", ""), "not JSON at its byte "},
       {"deep", SafetensorsOf("{\"x\":" + deep, ""), "tensor 'x': a list where"},
       {"deep objects", SafetensorsOf(R"({"x":{"shape":{"y":{)", ""), "tensor 'x': an object"},
       {"no object", SafetensorsOf(R"({"x":3})", ""), "tensor 'x': the number 3 where"},
       {"no dtype", SafetensorsOf(R"({"x":{"shape":[1]}})", ""), "tensor 'x': not described by"},
       {"unknown key", SafetensorsOf(R"({"x":{"kind":1}})", ""), "the unknown key 'kind'"},
       {"key twice", SafetensorsOf(R"({"x":{"dtype":"F32","dtype":"F32"}})", ""),
        "two keys 'dtype'"},
       {"tensor twice", SafetensorsOf("{\"x\":" + entry + ",\"x\":" + entry + "}", "01234567"),
        "two tensors are named 'x'"},
       {"metadata", SafetensorsOf(R"({"__metadata__":{"a":1}})", ""), "__metadata__: the number 1"},
       {"metadata twice", SafetensorsOf(R"({"__metadata__":{},"__metadata__":{}})", ""),
        "__metadata__: given twice"},
       {"none", SafetensorsOf("{}", ""), "no tensor '', the file has none"}});
}

TEST_F(IoMalformed, SafetensorsValues) {
  const auto pair = [](const std::string& first, const std::string& second) {
    const std::string start = R"({"dtype":"BOOL","shape":[4],"data_offsets":)";
    return SafetensorsOf("{\"x\":" + start + first + "},\"y\":" + start + second + "}}",
                         std::string(8, '\0'));
  };
  ExpectRefused(
      "x.safetensors",
      {{"negative axis", OneTensor("\"F32\"", "[-2]", "[0,8]"),
        "tensor 'x': the negative number -2"},
       {"fraction", OneTensor("\"F32\"", "[2.0]", "[0,8]"), "tensor 'x': the number '2.0'"},
       {"2^63", OneTensor("\"F32\"", "[9223372036854775808]", "[0,8]"), "the limit is 2^63 - 1"},
       {"2^64", OneTensor("\"F32\"", "[18446744073709551616]", "[0,8]"), "tensor 'x': the number"},
       {"product", OneTensor("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "the limit is 2^63"},
       {"backwards", OneTensor("\"F32\"", "[2]", "[8,0]"), "data_offsets [8, 0] are not within"},
       {"outside", OneTensor("\"F32\"", "[3]", "[0,12]"), "not within the 8 bytes of data"},
       {"wrong size", OneTensor("\"F32\"", "[1]", "[0,8]"), "4 bytes by dtype and shape, 8 by"},
       {"3 offsets", OneTensor("\"F32\"", "[2]", "[0,8,8]"), "more than 2 data_offsets"},
       {"1 offset", OneTensor("\"F32\"", "[2]", "[0]"), "2 data_offsets"},
       {"overlap", pair("[0,4]", "[2,6]"), "tensor 'y': data_offsets [2, 6] overlap"},
       {"same", pair("[0,4]", "[0,4]"), "overlap the tensor before, which ends at 4"},
       {"gap", pair("[0,2]", "[4,8]"), "2 by data_offsets"},
       {"gap between", OneTensor("\"F32\"", "[1]", "[4,8]"), "leave a gap after 0"},
       {"rest", OneTensor("\"F32\"", "[1]", "[0,4]"), "8 bytes of data, the tensors end at 4"},
       {"scalar", OneTensor("\"F32\"", "[]", "[0,4]", 4), "tensor 'x': the array has 0 axes"},
       {"rank 5", OneTensor("\"F32\"", "[1,1,1,1,2]", "[0,8]"), "tensor 'x': the array has 5 axes"},
       {"float64", OneTensor("\"F64\"", "[1]", "[0,8]"), "'F64' (float64) is not read; save it as"},
       {"dtype", OneTensor("\"U8\"", "[8]", "[0,8]"), "tensor 'x': dtype 'U8' is not read"},
       {"no text", OneTensor("32", "[2]", "[0,8]"), "tensor 'x': the number 32"},
       {"int64 too large",
        SafetensorsOf(R"({"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})",
                      Raw<std::int64_t>(-2147483649LL)),
        "tensor 'x': element 0 is -2147483649, the limits of int32"}},
      "");
}

TEST_F(IoMalformed, Paths) {
  HostTensor tensor;
  std::vector<TensorEntry> entries;
  const auto refused = [&](const std::string& path, const char* problem) {
    for (const Status& status : {ReadTensor(path, "", &tensor), ListTensors(path, &entries)}) {
      EXPECT_TRUE(status.message().starts_with(path + ": ")) << status.message();
      EXPECT_NE(status.message().find(problem), std::string::npos) << status.message();
    }
  };
  std::filesystem::create_directory(folder_ / "folder.npy");
  ASSERT_EQ(::mkfifo(Path("pipe.npz").c_str(), 0600), 0);
  refused(Path("none.npy"), "No such file");
  refused(Path("folder.npy"), "not a regular file");
  refused(Path("pipe.npz"), "not a regular file");
  refused(Put("x.bin", ""), "the extension must be .npy, .npz or .safetensors");
}

// Any prefix of a sound file, and any byte of it changed: an answer, never a crash.
TEST_F(IoMalformed, CorpusCutAndChanged) {
  const std::filesystem::path corpus = FLASHWOK_SOURCE_DIR "/tests/fuzz/corpus";
  int files = 0;
  for (const char* format : {"npy", "npz", "safetensors"}) {
    for (const auto& entry : std::filesystem::directory_iterator(corpus / format)) {
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string file(std::istreambuf_iterator<char>(stream), {});
      const std::string name = std::string("x.") + format;
      const std::size_t step = file.size() / 64 + 1;
      for (std::size_t n = 0; n < file.size(); n += step) {
        HostTensor tensor;
        std::vector<TensorEntry> entries;
        std::string changed = file;
        changed[n] = static_cast<char>(changed[n] ^ 0x5A);
        std::string cut = file.substr(0, n);
        for (std::string* bytes : {&cut, &changed}) {
          const Status status = ReadTensor(AsBytes(*bytes), name, "", &tensor);
          EXPECT_TRUE(status.ok() || status.message().starts_with(name + ": "));
          (void)ListTensors(AsBytes(*bytes), name, &entries);
        }
      }
      ++files;
    }
  }
  EXPECT_GE(files, 20);
}

}  // namespace
}  // namespace flashwok::io
