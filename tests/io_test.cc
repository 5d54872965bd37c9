// Arrays in files: what is written comes back, and what numpy and others write is read right.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "io/output_file.h"
#include "tests/file_builders.h"

namespace flashwok::io {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr DType kAllDTypes[] = {DType::kFloat32,    DType::kFloat16,    DType::kBFloat16,
                                DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kBool,
                                DType::kInt32};

HostTensor Counting(DType dtype, const Shape& shape) {
  HostTensor tensor = HostTensor::Make(dtype, shape);
  for (std::size_t n = 0; n < tensor.num_bytes(); ++n) {
    tensor.data()[n] = static_cast<std::byte>(dtype == DType::kBool ? n % 2 : n * 7 + 1);
  }
  return tensor;
}

void ExpectSame(const HostTensor& a, const HostTensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(Values<char>(a), Values<char>(b));
}

class RoundTrip : public FileTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip, testing::Values(".npy", ".npz", ".safetensors"),
                         [](const auto& param) { return std::string(param.param + 1); });

using IoTest = FileTest;

TEST_P(RoundTrip, EveryDTypeAndRank) {
  const bool numpy = GetParam() != std::string(".safetensors");
  const Shape shapes[] = {{5}, {2, 3}, {3, 1, 4}, {2, 3, 2, 5}, {0}, {2, 0, 3}};
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(std::string(Name(dtype)) + " of rank " + std::to_string(shape.size()));
      const std::string path = Path(std::string("x") + GetParam());
      const HostTensor tensor = Counting(dtype, shape);
      const Status written = WriteTensors(path, NamedTensors{{"x", &tensor}});
      if (numpy && (ItemSize(dtype) == 1 ? dtype != DType::kBool : dtype == DType::kBFloat16)) {
        EXPECT_NE(written.message().find(Name(dtype)), std::string::npos) << written.message();
        EXPECT_TRUE(FilesIn(folder_).empty());
        continue;
      }
      ASSERT_TRUE(written.ok()) << written.message();
      HostTensor back;
      const Status read = ReadTensor(path, "", &back);
      ASSERT_TRUE(read.ok()) << read.message();
      ExpectSame(tensor, back);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back.data()) % 64, 0u);
      EXPECT_EQ(FilesIn(folder_).size(), 1u);
      std::filesystem::remove(path);
    }
  }
}

TEST_P(RoundTrip, StridedViews) {
  HostTensor whole = HostTensor::Make(DType::kInt32, {2, 3, 4});
  auto* numbers = reinterpret_cast<std::int32_t*>(whole.data());
  std::iota(numbers, numbers + 24, 0);
  Tensor swapped = whole.View();  // [2, 4, 3], every second of the last
  swapped.shape = {2, 4, 2};
  swapped.strides = {12, 1, 8};
  Tensor broadcast = whole.View();
  broadcast.shape = {2, 3, 3};
  broadcast.strides = {0, 4, 1};
  const std::vector<std::int32_t> swapped_values = {0,  8,  1,  9,  2,  10, 3,  11,
                                                    12, 20, 13, 21, 14, 22, 15, 23};
  const std::vector<std::int32_t> broadcast_values = {0, 1, 2, 4, 5, 6, 8, 9, 10,
                                                      0, 1, 2, 4, 5, 6, 8, 9, 10};
  for (const auto& [view, values] :
       {std::pair(swapped, swapped_values), std::pair(broadcast, broadcast_values)}) {
    const std::string path = Path(std::string("x") + GetParam());
    ASSERT_TRUE(WriteTensors(path, NamedViews{{"x", view}}).ok());
    HostTensor back;
    ASSERT_TRUE(ReadTensor(path, "", &back).ok());
    EXPECT_EQ(Values<std::int32_t>(back), values);
  }
}

TEST_P(RoundTrip, LargeAndStridedPassesTheBuffer) {
  HostTensor whole = Counting(DType::kFloat32, {700, 300});
  Tensor view = whole.View();
  view.shape[1] = 299;
  const std::string path = Path(std::string("x") + GetParam());
  ASSERT_TRUE(WriteTensors(path, NamedViews{{"x", view}}).ok());
  HostTensor back;
  ASSERT_TRUE(ReadTensor(path, "", &back).ok());
  for (std::size_t row = 0; row < 700; ++row) {
    ASSERT_EQ(std::memcmp(back.data() + row * 299 * 4, whole.data() + row * 1200, 299 * 4), 0);
  }
}

TEST_P(RoundTrip, ReplacesAndRepeats) {
  const std::string name = std::string("x") + GetParam();
  const HostTensor tensor = Counting(DType::kFloat32, {4, 4});
  Put(name, "what was there before");
  ASSERT_TRUE(WriteTensors(Path(name), NamedTensors{{"x", &tensor}}).ok());
  const std::string first = Get(name);
  ASSERT_TRUE(WriteTensors(Path(name), NamedTensors{{"x", &tensor}}).ok());
  EXPECT_EQ(first, Get(name)) << "the same arrays give the same file";
  EXPECT_EQ(FilesIn(folder_).size(), 1u);
  EXPECT_EQ(std::filesystem::status(Path(name)).permissions() & std::filesystem::perms::owner_all,
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_P(RoundTrip, NothingAppearsOnFailure) {
  const HostTensor tensor = Counting(DType::kFloat32, {4});
  const std::string name = std::string("x") + GetParam();
  std::filesystem::create_directories(folder_ / name / "inside");  // cannot be renamed over
  const Status status = WriteTensors(Path(name), NamedTensors{{"x", &tensor}});
  EXPECT_TRUE(status.message().starts_with(Path(name) + ": ")) << status.message();
  EXPECT_EQ(FilesIn(folder_), std::vector<std::string>{name});
  const Status missing = WriteTensors(Path("no/") + name, NamedTensors{{"x", &tensor}});
  EXPECT_TRUE(missing.message().starts_with(Path("no/") + name)) << missing.message();

  HostTensor absent;
  EXPECT_FALSE(WriteTensors(Path("y" + name), NamedTensors{{"x", &absent}}).ok());
  EXPECT_FALSE(WriteTensors(Path("y" + name), NamedTensors{}).ok());
  EXPECT_FALSE(WriteTensors(Path("y.bin"), NamedTensors{{"x", &tensor}}).ok());
  EXPECT_EQ(FilesIn(folder_).size(), 1u);
}

// Files of this process may not grow past some bytes while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_P(RoundTrip, NothingAppearsOnAFullDisk) {
  const HostTensor tensor = Counting(DType::kFloat32, {500, 1000});
  const std::string path = Path(std::string("x") + GetParam());
  Status status;
  {
    const FileSizeLimit limit(100'000);
    status = WriteTensors(path, NamedTensors{{"x", &tensor}});
  }
  EXPECT_TRUE(status.message().starts_with(path + ": ")) << status.message();
  EXPECT_TRUE(FilesIn(folder_).empty());
}

// A signal in the middle of a write: that of a file that may not grow, taken for another one.
TEST_P(RoundTrip, ASignalLeavesNothing) {
  const HostTensor tensor = Counting(DType::kFloat32, {500, 1000});
  const pid_t child = ::fork();
  if (child == 0) {
    OutputFile::RemoveOnSignals();
    const rlimit limit = {100'000, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, [](int) { std::raise(SIGTERM); });
    const Status status =
        WriteTensors(Path(std::string("x") + GetParam()), NamedTensors{{"x", &tensor}});
    ::_exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_TRUE(FilesIn(folder_).empty());
}

TEST_F(IoTest, ManyTensorsByName) {
  const HostTensor flags = Counting(DType::kBool, {3});
  const HostTensor q = Counting(DType::kFloat32, {2, 3});
  const HostTensor k = Counting(DType::kFloat16, {5});
  for (const char* name : {"x.npz", "x.safetensors"}) {
    const std::string path = Path(name);
    const NamedTensors all = {{"flags", &flags}, {"q", &q}, {"k/\xC3\xA9", &k}};
    ASSERT_TRUE(WriteTensors(path, all).ok());
    std::vector<TensorEntry> entries;
    ASSERT_TRUE(ListTensors(path, &entries).ok());
    ASSERT_EQ(entries.size(), all.size());
    for (const auto& [key, tensor] : all) {
      HostTensor back;
      const Status status = ReadTensor(path, key, &back);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectSame(*tensor, back);
      EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const TensorEntry& entry) {
        return entry.name == key && entry.shape == tensor->shape();
      }));
    }
    HostTensor none;
    const std::string message = ReadTensor(path, "v", &none).message();
    EXPECT_NE(message.find("no "), std::string::npos) << message;
    EXPECT_NE(message.find("'v', the file has "), std::string::npos) << message;
    EXPECT_FALSE(ReadTensor(path, "", &none).ok());
    EXPECT_FALSE(WriteTensors(path, NamedTensors{{"q", &q}, {"q", &q}}).ok());
  }
  EXPECT_NE(WriteTensors(Path("x.npy"), NamedTensors{{"q", &q}, {"k", &k}})
                .message()
                .find("2 tensors, a .npy file holds 1"),
            std::string::npos);
}

TEST_F(IoTest, MetadataAndAlignmentOfSafetensors) {
  const HostTensor flags = Counting(DType::kBool, {3});
  const HostTensor q = Counting(DType::kFloat32, {2});
  const std::string path = Path("x.safetensors");
  const NamedViews views = {{"flags", flags.View()}, {"q", q.View()}};
  ASSERT_TRUE(WriteTensors(path, views, {{"origin", "a \"test\""}}).ok());
  const std::string file = Get("x.safetensors");
  EXPECT_NE(file.find(R"("__metadata__":{"origin":"a \"test\""})"), std::string::npos);
  EXPECT_NE(file.find(R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
            std::string::npos);
  EXPECT_EQ((file.size() - 11) % 8, 0u);
  HostTensor back;
  ASSERT_TRUE(ReadTensor(path, "flags", &back).ok());
  ExpectSame(flags, back);
  EXPECT_FALSE(WriteTensors(path, views, {{"broken", "\xFF"}}).ok());
  EXPECT_FALSE(WriteTensors(path, NamedViews{{"__metadata__", q.View()}}).ok());
  EXPECT_FALSE(WriteTensors(Path("x.npz"), views, {{"origin", "here"}}).ok());
  EXPECT_EQ(Get("x.safetensors"), file);
}

TEST_F(IoTest, NpyOfEveryVersionOrderAndByteOrder) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const std::vector<float> columns = {0, 2, 4, 1, 3, 5};  // [2, 3] read by columns
  for (const int version : {1, 2, 3}) {
    for (const bool big : {false, true}) {
      for (const bool fortran : {false, true}) {
        const std::string dict =
            NpyDictText(big ? "'>f4'" : "'<f4'", "(2, 3)", fortran ? "True" : "False");
        const std::string file = NpyOf(dict, RawAll(values, big), version);
        HostTensor tensor;
        const Status status = ReadTensor(AsBytes(file), "x.npy", "", &tensor);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
        EXPECT_EQ(Values<float>(tensor), fortran ? columns : values);
      }
    }
  }
}

TEST_F(IoTest, FortranOrderOfFourAxes) {
  std::vector<std::int32_t> numbers(2 * 3 * 4 * 5);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::string file =
      NpyOf(NpyDictText("'>i4'", "(2, 3, 4, 5)", "True"), RawAll(numbers, true));
  HostTensor tensor;
  ASSERT_TRUE(ReadTensor(AsBytes(file), "x.npy", "", &tensor).ok());
  const auto values = Values<std::int32_t>(tensor);
  for (int a = 0, n = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 4; ++c)
        for (int d = 0; d < 5; ++d) EXPECT_EQ(values[n++], a + 2 * (b + 3 * (c + 4 * d)));
}

TEST_F(IoTest, Int64BecomesInt32) {
  const std::vector<std::int64_t> values = {0, -1, 2147483647, -2147483648LL};
  const std::vector<std::int32_t> expected = {0, -1, 2147483647, -2147483647 - 1};
  const std::string offsets = R"({"x":{"dtype":"I64","shape":[4],"data_offsets":[0,32]}})";
  const std::pair<const char*, std::string> files[] = {
      {"x.npy", NpyOf(NpyDictText("'<i8'", "(4,)"), RawAll(values))},
      {"x.npy", NpyOf(NpyDictText("'>i8'", "(4,)"), RawAll(values, true))},
      {"x.safetensors", SafetensorsOf(offsets, RawAll(values))}};
  for (const auto& [name, file] : files) {
    HostTensor tensor;
    const Status status = ReadTensor(AsBytes(file), name, "", &tensor);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(tensor.dtype(), DType::kInt32);
    EXPECT_EQ(Values<std::int32_t>(tensor), expected);
  }
}

TEST_F(IoTest, NpzStoredAndDeflated) {
  const std::string array = NpyOf(NpyDictText("'<f4'", "(2,)"), RawAll<float>({1.5F, -2.0F}));
  const std::string path = Put("x.npz", ZipOf({{"q.npy", array}, {"k.npy", array, true}}));
  for (const char* name : {"q", "k"}) {
    HostTensor tensor;
    const Status status = ReadTensor(path, name, &tensor);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(Values<float>(tensor), (std::vector<float>{1.5F, -2.0F}));
  }
}

TEST_F(IoTest, UnalignedSafetensors) {
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
                             R"("x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const std::string file = SafetensorsOf(header, std::string(1, '\1') + RawAll<float>({3, 4}));
  HostTensor tensor;
  const Status status = ReadTensor(Put("x.safetensors", file), "x", &tensor);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Values<float>(tensor), (std::vector<float>{3, 4}));
}

TEST_F(IoTest, OtherTensorsNeedNotBeReadable) {
  const std::string header = R"({"step":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const std::string file = SafetensorsOf(header, std::string(8, '\0') + Raw(5.0F));
  HostTensor tensor;
  EXPECT_TRUE(ReadTensor(AsBytes(file), "x.safetensors", "x", &tensor).ok());
  EXPECT_FALSE(ReadTensor(AsBytes(file), "x.safetensors", "step", &tensor).ok());
}

}  // namespace
}  // namespace flashwok::io
