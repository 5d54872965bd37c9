// The command line on real files and on files made here.
#include "tests/cli_test.h"

#include <cstring>
#include <vector>

#include "common/dtype.h"
#include "io/tensor_file.h"
#include "lib/command.h"
#include "lib/options.h"
#include "lib/sha256.h"

namespace flashwok::test {
namespace {

const char* const kLayer = "minilm_layer0.safetensors";

io::HostTensor Read(const std::string& path, const std::string& name) {
  io::HostTensor tensor;
  const Status status = io::ReadTensor(path, name, &tensor);
  EXPECT_TRUE(status.ok()) << status.message();
  return tensor;
}

std::string BytesOf(const io::HostTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), tensor.num_bytes()};
}

// [a, b, c, d] -> [a, c, b, d], a copy.
io::HostTensor Swapped(const io::HostTensor& tensor) {
  const auto& s = tensor.shape();
  io::HostTensor result = io::HostTensor::Make(tensor.dtype(), {s[0], s[2], s[1], s[3]});
  const std::size_t row = static_cast<std::size_t>(s[3] * ItemSize(tensor.dtype()));
  for (std::int64_t a = 0; a < s[0]; ++a) {
    for (std::int64_t b = 0; b < s[1]; ++b) {
      for (std::int64_t c = 0; c < s[2]; ++c) {
        const std::int64_t from = (a * s[1] + b) * s[2] + c;
        const std::int64_t to = (a * s[2] + c) * s[1] + b;
        std::memcpy(result.data() + to * row, tensor.data() + from * row, row);
      }
    }
  }
  return result;
}

TEST_F(CliTest, HelpTellsCommandsAndExitCodes) {
  const Outcome help = Run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("Exit codes: 0"), std::string::npos);
  for (const char* command : {"run", "compare", "verify", "trace", "bench", "info"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const Outcome own = Run(std::string(command) + " --help");
    EXPECT_EQ(own.code, 0);
    EXPECT_NE(own.out.find("--json"), std::string::npos) << command;
  }
}

TEST_F(CliTest, RunOnRealTensorsPassesItsVerification) {
  for (const char* file : {"o.safetensors", "o.npz"}) {
    const auto run = RunJson("run --input " + Data(kLayer) + " --backward -o " + Path(file));
    EXPECT_TRUE(run["problem"]["seqused_k"].get<bool>());
    EXPECT_EQ(run["runs"].size(), 2u);
    EXPECT_GT(run["runs"][0]["gflops"].get<double>(), 0.0);
    std::vector<io::TensorEntry> entries;
    ASSERT_TRUE(io::ListTensors(Path(file), &entries).ok());
    EXPECT_EQ(entries.size(), 5u);
    const auto verdict = RunJson("verify --input " + Data(kLayer) + " --result " + Path(file));
    EXPECT_TRUE(verdict["passes"].get<bool>());
    EXPECT_EQ(verdict["verdicts"][0]["tensors"].size(), 5u);
  }
}

TEST_F(CliTest, NpyHoldsTheOutputAlone) {
  RunJson("run --input " + Data(kLayer) + " -o " + Path("o.npy"));
  EXPECT_EQ(Read(Path("o.npy"), "").shape(), (std::vector<std::int64_t>{2, 160, 12, 32}));
  const auto verdict = RunJson("verify --input " + Data(kLayer) + " --result " + Path("o.npy"));
  EXPECT_TRUE(verdict["verdicts"][0]["tensors"].contains("o"));
}

TEST_F(CliTest, VerifyFailsOnAWrongResult) {
  RunJson("run --input " + Data(kLayer) + " -o " + Path("o.npz"));
  const Outcome other = Run("verify --input " + Data(kLayer) + " --seqused-k none --result " +
                            Path("o.npz") + " --json");
  EXPECT_EQ(other.code, 1);
  EXPECT_FALSE(other.Json()["passes"].get<bool>());

  io::HostTensor o = Read(Path("o.npz"), "o");
  o.data()[1] ^= std::byte{0x7F};  // the exponent of the first element
  ASSERT_TRUE(io::WriteTensors(Path("bad.npz"), {{"o", &o}}).ok());
  const Outcome bad = Run("verify --input " + Data(kLayer) + " --result " + Path("bad.npz"));
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.out.find("FAILS"), std::string::npos);
}

TEST_F(CliTest, BhsdFilesGiveTheSameNumbers) {
  RunJson("run --input " + Data(kLayer) + " --backward -o " + Path("a.npz"));
  std::vector<io::HostTensor> swapped;
  for (const char* name : {"q", "k", "v", "dout"}) {
    swapped.push_back(Swapped(Read(Data(kLayer), name)));
  }
  const io::HostTensor lengths = Read(Data(kLayer), "seqused_k");
  ASSERT_TRUE(io::WriteTensors(Path("in.npz"), {{"query", &swapped[0]},
                                                {"key", &swapped[1]},
                                                {"value", &swapped[2]},
                                                {"grad", &swapped[3]},
                                                {"lengths", &lengths}})
                  .ok());
  RunJson("run --layout bhsd --input " + Path("in.npz") +
          " --q-name query --k-name key --v-name value --dout-name grad --seqused-k :lengths "
          "--backward -o " +
          Path("b.npz"));
  for (const char* name : {"o", "dq", "dk", "dv"}) {
    EXPECT_EQ(BytesOf(Swapped(Read(Path("b.npz"), name))), BytesOf(Read(Path("a.npz"), name)))
        << name;
  }
  EXPECT_EQ(BytesOf(Read(Path("b.npz"), "lse")), BytesOf(Read(Path("a.npz"), "lse")));
}

// dout has the inputs' dtype; O, and with it the gradient that arrives there, may be wider.
TEST_F(CliTest, WideOutputsOfNarrowInputsHaveGradients) {
  const std::string wide = " --backward --out-dtype float32 ";
  const std::string real = "--input " + Data(kLayer);
  RunJson("run " + real + wide + "-o " + Path("wide.npz"));
  EXPECT_EQ(Read(Path("wide.npz"), "o").dtype(), DType::kFloat32);
  EXPECT_EQ(Run("verify " + real + " --result " + Path("wide.npz")).code, 0);
  EXPECT_EQ(Run("verify --seqlen 40 --dtype bfloat16" + wide).code, 0);

  std::vector<io::HostTensor> swapped;
  for (const char* name : {"q", "k", "v", "dout"}) {
    swapped.push_back(Swapped(Read(Data(kLayer), name)));
  }
  ASSERT_TRUE(
      io::WriteTensors(
          Path("in.npz"),
          {{"q", &swapped[0]}, {"k", &swapped[1]}, {"v", &swapped[2]}, {"dout", &swapped[3]}})
          .ok());
  const std::string lengths = " --seqused-k " + Data(kLayer) + ":seqused_k";
  RunJson("run --layout bhsd --input " + Path("in.npz") + lengths + wide + "-o " +
          Path("bhsd.npz"));
  EXPECT_EQ(BytesOf(Swapped(Read(Path("bhsd.npz"), "dv"))), BytesOf(Read(Path("wide.npz"), "dv")));
}

TEST_F(CliTest, NpyFilesOneATensor) {
  for (const char* name : {"q", "k", "v"}) {
    const io::HostTensor tensor = Read(Data(kLayer), name);
    ASSERT_TRUE(io::WriteTensors(Path(std::string(name) + ".npy"), {{name, &tensor}}).ok());
  }
  const std::string files =
      " --q " + Path("q.npy") + " --k " + Path("k.npy") + " --v " + Path("v.npy");
  RunJson("run" + files + " --seqused-k " + Data(kLayer) + ":seqused_k -o " + Path("a.npz"));
  RunJson("run --input " + Data(kLayer) + " -o " + Path("b.npz"));
  EXPECT_EQ(BytesOf(Read(Path("a.npz"), "o")), BytesOf(Read(Path("b.npz"), "o")));
}

TEST_F(CliTest, VerifyTakesEveryFeature) {
  for (const char* options :
       {"--shape 2,40,56,4,2,24,40 --causal bottom_right --window 20,-1 --softcap 3",
        "--shape 1,48,40,2,1,64 --causal top_left --alibi-slopes auto --dropout-p 0.2",
        "--seqlen 64 --cu-seqlens-q 0,10,64 --cu-seqlens-k 0,40,64 --heads 2 --layout bhsd",
        "--shape 2,33,65,2,2,32 --seqused-k 0,65 --dtype bfloat16 --softmax-scale -0.1"}) {
    const auto json = RunJson(std::string("verify --backward --tile-q 16 --tile-kv 16 ") + options);
    EXPECT_TRUE(json["passes"].get<bool>()) << options << "\n" << json.dump(2);
    EXPECT_EQ(json["verdicts"].size(), 4u);
  }
  const auto json = RunJson("verify --shape 1,64,64,2,2,64 --dtype e4m3 --v-descale 0.5");
  EXPECT_TRUE(json["passes"].get<bool>());
  EXPECT_TRUE(json["verdicts"][0].contains("refused"));
}

// D = rowsum(dO * O) has the rounding of O, which the gradients of a row of one key consist of.
TEST_F(CliTest, VerifyJudgesGradientsByTheGivenO) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    for (const char* options : {"--shape 1,64,1,2,1,64", "--shape 1,64,1,2,1,64 --dropout-p 0.4",
                                "--shape 2,40,40,2,2,64 --window 0,0 --dropout-p 0.6"}) {
      const std::string problem = std::string(options) + " --backward --dtype " + dtype;
      const Outcome verify = Run("verify " + problem);
      EXPECT_EQ(verify.code, 0) << problem << "\n" << verify.out << verify.err;
    }
  }
  const std::string problem = " --shape 1,64,1,2,1,64 --dropout-p 0.4 --dtype bfloat16";
  const auto compared = RunJson("compare --backward --repeats 1" + problem);
  for (const auto& algorithm : compared["passes"][1]["algorithms"]) {
    EXPECT_LT(algorithm["errors"]["dq"]["max_error"].get<double>(), 1e-3);
  }
  RunJson("run --backward -o " + Path("o.safetensors") + problem);
  std::vector<io::HostTensor> results;
  for (const char* name : {"o", "lse", "dq"}) results.push_back(Read(Path("o.safetensors"), name));
  float dq = LoadAsFloat(results[2].data(), DType::kBFloat16, 0);
  StoreFromFloat(results[2].data(), DType::kBFloat16, 0, dq + 0.001f);
  ASSERT_TRUE(io::WriteTensors(Path("bad.safetensors"),
                               {{"o", &results[0]}, {"lse", &results[1]}, {"dq", &results[2]}})
                  .ok());
  EXPECT_EQ(Run("verify --result " + Path("o.safetensors") + problem).code, 0);
  EXPECT_EQ(Run("verify --result " + Path("bad.safetensors") + problem).code, 1);
}

// Commands that are refused, each with words that its one line must hold.
struct Refusal {
  std::string arguments;
  std::vector<std::string> words;
};

class CliBadInputTest : public CliTest {
 protected:
  void Expect(const std::vector<Refusal>& refusals) const {
    const int files = FilesLeft();
    for (const Refusal& refusal : refusals) {
      const Outcome outcome = Run(refusal.arguments);
      EXPECT_EQ(outcome.code, 2) << refusal.arguments << "\n" << outcome.err;
      EXPECT_EQ(outcome.out, "") << refusal.arguments;
      EXPECT_EQ(outcome.err.find('\n') + 1, outcome.err.size()) << outcome.err;
      for (const std::string& word : refusal.words) {
        EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
      }
    }
    EXPECT_EQ(FilesLeft(), files);
  }
};

TEST_F(CliBadInputTest, Tensors) {
  const std::string real = "run --input " + Data(kLayer) + " -o " + Path("o.npz") + " ";
  io::HostTensor large = io::HostTensor::Make(DType::kFloat32, {1, 4, 2, 300});
  std::memset(large.data(), 0, large.num_bytes());
  const std::string file = Path("large.npy");
  ASSERT_TRUE(io::WriteTensors(file, {{"q", &large}}).ok());
  const std::string whole = Path("whole.npy");
  io::HostTensor numbers = io::HostTensor::Make(DType::kInt32, {1, 32, 8, 64});
  std::memset(numbers.data(), 0, numbers.num_bytes());
  ASSERT_TRUE(io::WriteTensors(whole, {{"o", &numbers}}).ok());
  const std::string bytes = ReadFile(file);
  std::ofstream(Path("cut.npy"), std::ios::binary) << bytes.substr(0, bytes.size() - 7);
  Expect({
      {"run", {"--q"}},
      {"run --q a.npy", {"--k"}},
      {"run --q /no/q.npy --k /no/k.npy --v /no/v.npy", {"q", "/no/q.npy"}},
      {"run --q " + file + " --k " + file + " --v " + file, {file, "q", "300", "256"}},
      {"run --q " + Path("cut.npy") + " --k a.npy --v a.npy", {"cut.npy"}},
      {"verify --seqlen 32 --result " + file, {file, "o", "300", "64"}},
      {"verify --seqlen 32 --result " + whole, {whole, "o", "int32", "floating point"}},
      {real + "--q-name nope", {kLayer, "nope"}},
      {real + "--seqused-k 160,161", {"seqused_k", "161", "160"}},
      {real + "--seqused-k 160,x", {"160,x"}},
      {real + "--mask :mask", {kLayer, "mask"}},
      {real + "--shape 1,2,3,4,4,8", {"--shape"}},
      {real + "--backward --dout :nope", {kLayer, "nope"}},
      {real + "--backward --dout none", {"--dout"}},
      {"run --q :q --k :k --v :v", {"--input"}},
  });
}

TEST_F(CliBadInputTest, Options) {
  const std::string made = "run --seqlen 32 -o " + Path("o.npz") + " ";
  Expect({
      {made + "--causal sideways", {"--causal", "sideways", "top_left"}},
      {made + "--window -2,0", {"window_left", "-2", "-1"}},
      {made + "--window 3", {"--window"}},
      {made + "--dtype int4", {"--dtype", "int4", "bfloat16"}},
      {made + "--out-dtype e5", {"--out-dtype", "e5"}},
      {made + "--algorithm v9", {"--algorithm", "v9", "v3"}},
      {made + "--layout sbhd", {"--layout", "sbhd", "bhsd"}},
      {made + "--device tpu", {"--device", "tpu", "cpu, cuda or cuda:N"}},
      {made + "--device cuda:", {"--device", "'cuda:'"}},
      {made + "--device cuda:-1", {"--device", "'cuda:-1'"}},
      {made + "--device cuda:0x", {"--device", "'cuda:0x'"}},
      {made + "--device cuda:99999999999", {"--device", "'cuda:99999999999'"}},
      {made + "--softmax-scale nan", {"softmax_scale", "nan"}},
      {made + "--dropout-p 1", {"dropout_p", "1"}},
      {made + "--threads -1", {"num_threads", "-1", "4096"}},
      {made + "--tile-q 5000", {"tile_q", "5000"}},
      {made + "--workspace-limit 1KiB", {"workspace_limit, 1 KiB"}},
      {made + "--workspace-limit much", {"--workspace-limit", "much"}},
      {made + "--head-dim 257", {"head_dim", "257", "256"}},
      {made + "--heads 3 --heads-kv 2", {"num_heads_kv", "2", "3"}},
      {"run --seqlen 32 -o " + Path("o.txt"), {"--output", "o.txt", ".npz"}},
      {"run --seqlen 32 -o ''", {"--output", "empty"}},
      {"run --seqlen 32 --dtype ''", {"--dtype", "empty"}},
      {"run --seqlen 32 -o " + Path("no/o.npz"), {"--output", "no/o.npz"}},
      {"run --shape 1,2", {"--shape", "1,2", "BATCH"}},
      {"run --shape 1,2147483647,8,64,64,256", {"--shape", "TiB"}},
      {"run --seqlen 65536 --heads 1 --algorithm standard", {"32.0 GiB", "16 GiB"}},
  });
}

// Neither wrapped nor brought to the nearest number.
TEST_F(CliBadInputTest, NumbersBeyondTheirType) {
  const std::string huge = "99999999999999999999";
  std::vector<Refusal> refusals = {
      {"run --seqlen 8 --seed=-1", {"--seed", "'-1'", "from 0 to 18446744073709551615"}},
      {"run --seqlen 8 --seed 4611686018427387904", {"--seed", "4611686018427387903"}},
      {"run --seqlen 8 --window " + huge + ",0", {"--window", huge, "9223372036854775807"}},
      {"run --seqlen 8 --window=0,-" + huge, {"--window", huge, "-9223372036854775808"}},
      {"run --shape 1," + huge + ",8,1,1,8", {"--shape", huge, "9223372036854775807"}},
      {"run --seqlen 8 --seqused-k 4294967300", {"--seqused-k", "4294967300", "32"}},
      {"compare --sweep 1:" + huge, {"--sweep", huge, "9223372036854775807"}},
      {"compare --seqlen 8 --repeats 4294967297", {"--repeats", "4294967297", "2147483647"}},
      {"bench --quick --rounds 4294967297", {"--rounds", "4294967297", "2147483647"}},
      {"bench --quick --threads=-5", {"--threads", "-5", "0"}},
      {"info --batch 4611686018427387904 --seqlen 4 --cu-seqlens-q 0,4 --cu-seqlens-k 0,4",
       {"4611686018427387904", "2147483647"}},
  };
  for (const char* flag : {"--dropout-seed", "--dropout-offset"}) {
    refusals.push_back({std::string("run --seqlen 8 ") + flag + "=-1", {flag, "'-1'", "from 0"}});
  }
  for (const char* flag : {"--threads", "--tile-q", "--tile-kv", "--num-splits"}) {
    refusals.push_back({std::string("run --seqlen 8 ") + flag + " 4294967297",
                        {flag, "4294967297", "2147483647"}});
  }
  for (const char* flag : {"--batch", "--seqlen", "--seqlen-q", "--seqlen-k", "--heads",
                           "--heads-kv", "--head-dim", "--head-dim-v"}) {
    refusals.push_back({std::string("run ") + flag + " " + huge, {flag, huge}});
  }
  Expect(refusals);
  EXPECT_EQ(RunJson("info --seqlen 010")["problem"], RunJson("info --seqlen 10")["problem"]);
}

TEST_F(CliBadInputTest, Commands) {
  Expect({
      {"nothing", {"'nothing'"}},
      {"compare --seqlen 32 --repeats 0", {"--repeats", "0", "1"}},
      {"compare --seqlen 32 --threads 9999", {"num_threads", "9999", "4096"}},
      {"compare --sweep 64:32", {"--sweep", "64:32"}},
      {"compare --seqlen 32 --picture x.png", {"--picture", "--sweep"}},
      {"compare --sweep --picture x.gif", {"--picture", "x.gif", ".svg"}},
      {"compare --sweep --picture " + Path("no/x.png"), {"--picture", "no/x.png"}},
      {"verify --seqlen 32 --kernel cpu_forward_v9", {"--kernel", "cpu_forward_v9"}},
      {"verify --seqlen 8 --kernel cpu_forward_v2 --algorithm v3", {"cpu_forward_v2", "v2", "v3"}},
      {"run --seqlen 8 --kernel cpu_forward_v2 --algorithm v3", {"cpu_forward_v2", "v2", "v3"}},
      {"verify --shape 1,8192,8192,1,1,8 --backward", {"too many"}},
      {"trace --seqlen 32 -o " + Path("no/t"), {"--output", "no/t"}},
      {"trace --seqlen 32 -o " + folder_.string(), {"--output", folder_.string(), "a file"}},
      {"trace --seqlen 32 --chrome /dev/null", {"--chrome", "/dev/null", "a file"}},
      {"trace --seqlen 32 -o " + Path(std::string(300, 'x')), {"--output", "xxx", "too long"}},
      {"trace --seqlen 32 -o " + Path("t") + " --chrome " + Path("../") +
           folder_.filename().string() + "/t",
       {"--chrome", "/t'", "--output"}},
      {"bench --quick --rounds 0", {"--rounds", "0", "1"}},
      {"bench --quick --peer-torch python3 --sources " + Path("no"), {"--sources", "no"}},
      {"bench --causal none", {"--causal", "without a problem"}},
      {"bench --backward", {"--backward", "without a shape"}},
      {"info --shape 1,8,8,1,1,257", {"head_dim", "257", "256"}},
      {"info --seqlen 8 --out-dtype float64", {"--out-dtype", "float64", "bfloat16"}},
      {"info --algorithm v9", {"--algorithm", "without a problem"}},
      {"info --seqlen 8 --tile-kv 257", {"tile_kv", "257", "256"}},
      {"info --seqlen 8 --kernel nope", {"kernel", "nope", "registry"}},
      {"info --k " + Path("k.npy"), {"--k", "without a problem"}},
  });
}

TEST(CliPartsTest, Sha256OfKnownMessages) {
  const auto hash = [](std::string_view text) {
    cli::Sha256 sha;
    sha.Update(text);
    return sha.HexDigest();
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(CliPartsTest, SourcesHashNeedsTheTree) {
  EXPECT_EQ(cli::SourcesSha256(FLASHWOK_SOURCE_DIR).size(), 64u);
  EXPECT_EQ(cli::SourcesSha256("/nonexistent"), "");
}

TEST(CliPartsTest, SizesWithUnits) {
  EXPECT_EQ(cli::ParseBytes("--x", "512MiB"), std::size_t{512} << 20);
  EXPECT_EQ(cli::ParseBytes("--x", "1.5 G"), std::size_t{3} << 29);
  EXPECT_EQ(cli::ParseBytes("--x", "2MB"), 2000000u);
  EXPECT_EQ(cli::ParseBytes("--x", "0"), 0u);
  for (const char* bad : {"", "-1", "1Q", "9000000TiB", "GiB", "0x10"}) {
    EXPECT_THROW(cli::ParseBytes("--x", bad), cli::BadInput) << bad;
  }
}

}  // namespace
}  // namespace flashwok::test
