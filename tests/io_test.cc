// The file readers and writers: round trips, the corners of the formats, and malformed files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "io/tensor_file.h"

namespace flashwok::io {
namespace {

Bytes AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Npy(const std::string& dict, const std::string& elements, char version = 1) {
  std::string file = std::string("\x93NUMPY") + version + '\0';
  file += static_cast<char>(dict.size());
  file += std::string(version == 1 ? 1 : 3, '\0');
  return file + dict + elements;
}

std::string Safetensors(const std::string& json, const std::string& data) {
  const std::uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json + data;
}

class IoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("flashwok_io_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

HostTensor Counting(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor = HostTensor::Make(dtype, std::move(shape));
  for (std::size_t n = 0; n < tensor.num_bytes(); ++n) {
    tensor.data()[n] = static_cast<std::byte>(n * 7 + 1);
  }
  return tensor;
}

void ExpectSame(const HostTensor& a, const HostTensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(a.shape(), b.shape());
  ASSERT_EQ(a.num_bytes(), b.num_bytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.num_bytes()), 0);
}

TEST_F(IoTest, RoundTrips) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                      DType::kFloat8E5M2, DType::kBool, DType::kInt32}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{3}, {2, 3, 4, 5}, {2, 0, 3}}) {
      SCOPED_TRACE(Name(dtype));
      const HostTensor tensor = Counting(dtype, shape);
      const HostTensor other = Counting(DType::kFloat32, {5});
      const bool in_npy = dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
                          dtype == DType::kBool || dtype == DType::kInt32;
      for (const char* name : {"a.safetensors", "a.npz", "a.npy"}) {
        if (!in_npy && !std::string(name).ends_with(".safetensors")) continue;
        const bool single = std::string(name).ends_with(".npy");
        NamedTensors named = {{"first", &tensor}};
        if (!single) named.emplace_back("second", &other);
        const Status written = WriteTensors(Path(name), named);
        ASSERT_TRUE(written.ok()) << written.message();
        HostTensor back;
        const Status read = ReadTensor(Path(name), single ? "" : "first", &back);
        ASSERT_TRUE(read.ok()) << read.message();
        ExpectSame(tensor, back);
        std::vector<TensorEntry> entries;
        ASSERT_TRUE(ListTensors(Path(name), &entries).ok());
        EXPECT_EQ(entries.size(), named.size());
      }
    }
  }
}

TEST_F(IoTest, AFailedWriteLeavesNothing) {
  const HostTensor tensor = Counting(DType::kBFloat16, {4});
  EXPECT_FALSE(WriteTensors(Path("a.npy"), {{"x", &tensor}}).ok());
  EXPECT_FALSE(WriteTensors(Path("a.npz"), {{"x", &tensor}}).ok());
  EXPECT_FALSE(WriteTensors(Path("a.bin"), {{"x", &tensor}}).ok());
  EXPECT_FALSE(WriteTensors(Path("none/a.safetensors"), {{"x", &tensor}}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(IoTest, NpyOrdersAndVersions) {
  const float values[6] = {0, 1, 2, 3, 4, 5};
  const std::string little(reinterpret_cast<const char*>(values), sizeof(values));
  std::string big = little;
  for (std::size_t n = 0; n < big.size(); n += 4)
    std::reverse(big.begin() + n, big.begin() + n + 4);
  for (char version : {1, 2, 3}) {
    HostTensor tensor;
    const std::string dict = "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    const Status status = ParseNpy(AsBytes(Npy(dict, big, version)), "f.npy", &tensor);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(std::memcmp(tensor.data(), values, sizeof(values)), 0);
  }
  HostTensor tensor;
  const std::string dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n";
  ASSERT_TRUE(ParseNpy(AsBytes(Npy(dict, little)), "f.npy", &tensor).ok());
  const float transposed[6] = {0, 2, 4, 1, 3, 5};
  EXPECT_EQ(std::memcmp(tensor.data(), transposed, sizeof(transposed)), 0);
}

TEST_F(IoTest, MalformedNpyNamesFileAndProblem) {
  const auto dict = [](const std::string& descr, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
  };
  const std::pair<std::string, const char*> files[] = {
      {"", "not a .npy file"},
      {Npy(dict("'<f4'", "(2,)"), std::string(7, 'x')), "promises 8 bytes"},
      {Npy(dict("'<f8'", "(1,)"), std::string(8, 'x')), "float64"},
      {Npy(dict("'|O'", "(1,)"), std::string(8, 'x')), "dtype '|O'"},
      {Npy(dict("[('a', '<f4')]", "(1,)"), std::string(4, 'x')), "structured"},
      {Npy(dict("'<f4'", "(-1,)"), ""), "negative"},
      {Npy(dict("'<f4'", "()"), std::string(4, 'x')), "0 axes"},
      {Npy(dict("'<f4'", "(1,1,1,1,1)"), std::string(4, 'x')), "5 axes"},
      {Npy(dict("'<f4'", "(4611686018427387904, 4)"), ""), "2^63"},
      {Npy(dict("'<f4'", "(0, 4611686018427387904, 4)"), ""), "2^63"},
      {Npy(dict("'<i8'", "(1,)"), std::string(8, '\x7f')), "outside int32"},
      {Npy("{'descr': '<f4'}", ""), "not a dict"},
      {Npy(dict("'<f4'", "(1,)"), "abcd", 4), "version 4"},
  };
  for (const auto& [file, problem] : files) {
    HostTensor tensor;
    const Status status = ParseNpy(AsBytes(file), "f.npy", &tensor);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().rfind("f.npy", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(problem), std::string::npos) << status.message();
  }
}

TEST_F(IoTest, MalformedSafetensorsNamesFileAndProblem) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string data(8, 'x');
  const std::pair<std::string, const char*> files[] = {
      {"", "8 bytes"},
      {Safetensors("", "").substr(0, 7) + '\x7f', "limit is 0"},
      {Safetensors("{", ""), "not a JSON object"},
      {Safetensors("[[[[[[[[]]]]]]]]", ""), "not a JSON object"},
      {Safetensors(one("[2]", "[0,16]"), data), "has 8 bytes of data"},
      {Safetensors(one("[2]", "[8,0]"), data), "data offsets"},
      {Safetensors(one("[3]", "[0,8]"), data), "12 bytes by its shape"},
      {Safetensors(one("[-1]", "[0,8]"), data), "not a size"},
      {Safetensors(one("[9223372036854775807,2]", "[0,8]"), data), "2^63"},
      {Safetensors(R"({"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", data), "F64"},
      {Safetensors(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                   data),
       "overlap"},
      {Safetensors(R"({"x":1,"x":2})", ""), "named once"},
      {Safetensors(R"({"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data),
       "no tensor 'x'; it has y"},
  };
  for (const auto& [file, problem] : files) {
    HostTensor tensor;
    const Status status = ParseSafetensors(AsBytes(file), "f.safetensors", "x", &tensor);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().rfind("f.safetensors", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(problem), std::string::npos) << status.message();
  }
}

TEST_F(IoTest, DamagedNpzIsRefused) {
  const HostTensor tensor = Counting(DType::kFloat32, {16});
  ASSERT_TRUE(WriteTensors(Path("a.npz"), {{"x", &tensor}}).ok());
  std::filesystem::resize_file(Path("a.npz"), std::filesystem::file_size(Path("a.npz")) - 9);
  HostTensor back;
  const Status status = ReadTensor(Path("a.npz"), "x", &back);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("a.npz"), std::string::npos);
}

}  // namespace
}  // namespace flashwok::io
