// The command line on CUDA devices: what it refuses without one, and what it does with two made-up
// ones (tests/fake_cuda), whose kernels are the CPU's.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "cuda/device.h"
#include "cuda/forward_v3_setup.h"
#include "tests/cli_test.h"
#include "tests/read_trace.h"

namespace flashwok::test {
namespace {

using nlohmann::json;

const char* const kHalf = " --shape 2,40,72,4,2,32 --causal bottom_right --dtype bfloat16";

class CliDeviceTest : public CliTest {
 protected:
  // One line with these words, and nothing else.
  void ExpectRefusal(const std::string& arguments, const std::vector<std::string>& words,
                     int code = 2) const {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(outcome.err.find('\n') + 1, outcome.err.size()) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
    }
    EXPECT_EQ(FilesLeft(), 0);
  }
};

TEST_F(CliDeviceTest, WithoutOneEveryCommandSaysWhy) {
  if (cuda::DeviceCount() > 0) GTEST_SKIP() << "there is one";
  const std::string problem = kHalf + std::string(" --device cuda");
  for (const std::string& command :
       {"run -o " + Path("o.safetensors"), std::string("compare"), std::string("verify"),
        std::string("compare --sweep 16:32"), "trace -o " + Path("t.fwtrace")}) {
    ExpectRefusal(command + problem, {"--device: is 'cuda:0', but " + cuda::Absence()});
  }
  const json info = RunJson("info" + problem);
  EXPECT_EQ(info["devices"][0]["name"], "cpu");
  EXPECT_EQ(info["devices"][1]["absent"], cuda::Absence());
  EXPECT_TRUE(info["problem"]["description"].get<std::string>().ends_with(", on cuda:0"));
  EXPECT_NE(info["plans"][0]["refused"].get<std::string>().find(cuda::Absence()),
            std::string::npos);
  EXPECT_NE(Run("info").out.find("cuda: none, " + cuda::Absence()), std::string::npos);
}

TEST_F(CliDeviceTest, OptionsOfTheCpuAreRefused) {
  for (const char* command :
       {"run", "compare", "verify", "info", "compare --sweep 16:32", "trace"}) {
    for (const char* option : {"--threads", "--tile-q", "--tile-kv"}) {
      ExpectRefusal(std::string(command) + kHalf + " --device cuda:1 " + option + " 2",
                    {option, "is 2", "cuda:1"});
    }
  }
  ExpectRefusal("verify --seqlen 8 --device cuda --result x.npz", {"--device", "--result"});
  ExpectRefusal("trace --seqlen 8 --blocks 0", {"--blocks", "CPU"});
  ExpectRefusal("trace --seqlen 8 --marks 8", {"--marks", "CPU"});
}

TEST_F(CliDeviceTest, HelpTellsTheDevices) {
  for (const char* command : {"run", "compare", "verify", "info", "trace"}) {
    EXPECT_NE(Run(std::string(command) + " --help").out.find("cpu, cuda or cuda:N"),
              std::string::npos);
  }
}

// --- With devices. -----------------------------------------------------------------------------

class CliFakeCudaTest : public CliDeviceTest {
 protected:
  CliFakeCudaTest() { program_ = FLASHWOK_FAKE_CUDA_PATH; }

  void Arrange(const std::string& what) {
    program_ = "FLASHWOK_FAKE_CUDA=" + what + " " + FLASHWOK_FAKE_CUDA_PATH;
  }
};

TEST_F(CliFakeCudaTest, RunGivesTheResultsOfItsKernel) {
  for (const std::string& problem :
       {std::string(kHalf), std::string(kHalf) + " --layout bhsd --alibi-slopes auto",
        std::string(" --seqlen 64 --cu-seqlens-q 0,10,60 --cu-seqlens-k 0,40,64 --heads 2 "
                    "--dtype float16"),
        " --dtype bfloat16 --input " + Data("minilm_layer0.safetensors")}) {
    for (const char* algorithm : {"standard", "v1", "v2", "v3"}) {
      const std::string arguments = "run" + problem + " --algorithm " + algorithm + " -o ";
      const json on_device = RunJson(arguments + Path("a.safetensors") + " --device cuda:1");
      EXPECT_EQ(on_device["device"], "cuda:1");
      const json& run = on_device["runs"][0];
      EXPECT_EQ(run["kernel"], std::string("cuda_forward_") + algorithm);
      EXPECT_EQ(run["ms"], 2.0);
      EXPECT_EQ(run["extra_bytes"], 4096);
      EXPECT_FALSE(run.contains("threads"));
      EXPECT_EQ(RunJson(arguments + Path("b.safetensors"))["device"], "cpu");
      EXPECT_EQ(ReadFile(Path("a.safetensors")), ReadFile(Path("b.safetensors")))
          << problem << algorithm;
    }
  }
  const Outcome text = Run(std::string("run --device cuda") + kHalf);
  EXPECT_NE(text.out.find("on cuda:0, Fake GPU"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("threads"), std::string::npos) << text.out;
}

TEST_F(CliFakeCudaTest, CompareLeavesOutWhatIsNotCounted) {
  const std::string arguments = std::string("compare --repeats 3 --device cuda") + kHalf;
  const json document = RunJson(arguments);
  EXPECT_EQ(document["device"], "cuda:0");
  ASSERT_EQ(document["passes"].size(), 1u);
  EXPECT_EQ(document["passes"][0]["checked"], "every row");
  EXPECT_TRUE(document["passes"][0].contains("agreement"));
  ASSERT_EQ(document["passes"][0]["algorithms"].size(), 4u);
  for (const json& algorithm : document["passes"][0]["algorithms"]) {
    EXPECT_EQ(algorithm["ms"], 2.0);
    EXPECT_EQ(algorithm["repeats"], 3);
    EXPECT_EQ(algorithm["extra_bytes"], 4096);
    EXPECT_LT(algorithm["max_error"].get<double>(), 0.05);
    for (const char* key : {"traffic", "threads"}) {
      EXPECT_FALSE(algorithm.contains(key)) << key;
    }
  }
  const Outcome table = Run(arguments);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("on cuda:0, Fake GPU"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find(" -  "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("against float64"), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find("formula's"), std::string::npos) << table.out;
}

// Of one head of 40 queries and 72 keys of 32 numbers in 16 bits: Q and O 2,560 bytes each, K and V
// 9,216 together, lse 160; tiles of 128 x 64, so two KV tiles.
TEST_F(CliFakeCudaTest, BytesByTheFormulaAreOfTheDevicesTiles) {
  const json document =
      RunJson("compare --repeats 1 --no-oracle --device cuda" + std::string(kHalf));
  std::map<std::string, std::int64_t> bytes;
  for (const json& algorithm : document["passes"][0]["algorithms"]) {
    bytes[algorithm["algorithm"]] = algorithm["model_bytes"].get<std::int64_t>() / 8;  // heads
  }
  const std::int64_t once = 2560 + 9216 + 2560 + 160;
  EXPECT_EQ(bytes["v3"], once);
  EXPECT_EQ(bytes["v2"], once);
  // S and P, in 16 bits, each written once and read once.
  EXPECT_EQ(bytes["standard"], once + 4 * 40 * 72 * 2);
  // Q at each KV tile, with O in float32, m and l in and out; all three written before the first
  // and read after the last; m and l are results too.
  const std::int64_t scalars = 2 * 160, state = 40 * 32 * 4 + scalars;
  EXPECT_EQ(bytes["v1"], once + 2560 + 2 * 2 * state + state + state + scalars);
}

TEST_F(CliFakeCudaTest, SweepAndVerify) {
  const std::string device = " --device cuda --dtype float16";
  const json sweep = RunJson("compare --sweep 16:32 --picture " + Path("s.svg") + device);
  for (const json& point : sweep["sweep"]) {
    for (const json& algorithm : point["algorithms"]) {
      EXPECT_TRUE(algorithm.contains("needed_bytes"));
      EXPECT_FALSE(algorithm.contains("traffic_bytes"));
    }
  }
  EXPECT_NE(ReadFile(Path("s.svg")).find("<svg"), std::string::npos);
  const Outcome text = Run("compare --sweep 16:32" + device);
  EXPECT_EQ(text.out.find("Bytes moved"), std::string::npos) << text.out;
  const json verdict = RunJson("verify --seqlen 48" + device);
  EXPECT_TRUE(verdict["passes"].get<bool>());
  ASSERT_EQ(verdict["verdicts"].size(), 4u);
  EXPECT_EQ(verdict["verdicts"][3]["subject"], "cuda_forward_v3");
  EXPECT_TRUE(RunJson("verify --seqlen 48 --kernel cuda_forward_v2" + device)["passes"]);
}

TEST_F(CliFakeCudaTest, InfoListsDevicesAndPlansShapesAlone) {
  const json document = RunJson(
      "info --shape 1,1048576,1048576,128,128,128 --device cuda:1 "
      "--backward --dtype bfloat16");
  ASSERT_EQ(document["devices"].size(), 3u);
  EXPECT_EQ(document["devices"][2],
            json({{"name", "cuda:1"}, {"gpu", "Fake GPU"}, {"compute_capability", "9.0"}}));
  EXPECT_EQ(document["plans"][0]["kernel"], "cuda_forward_v3");
  EXPECT_NE(document["plans"][1]["refused"].get<std::string>().find("backward"), std::string::npos);
  EXPECT_NE(Run("info").out.find("cuda:1: Fake GPU, compute capability 9.0"), std::string::npos);
}

TEST_F(CliFakeCudaTest, TraceNeedsTimeStamps) {
  const std::string on_device = "trace --seqlen 64 --device cuda";
  const std::string trace = on_device + " --dtype bfloat16";
  const std::string out = " -o " + Path("t.fwtrace");
  ExpectRefusal(trace + out, {"without time stamps", "FLASHWOK_TIMESTAMPS"});
  Arrange("stamps");
  ExpectRefusal(trace + " --algorithm v2" + out, {"cuda_forward_v2", "but cuda_forward_v3 does"});
  ExpectRefusal(trace + " --backward" + out, {"backward", "cuda:0"});
  ExpectRefusal(on_device + out, {"dtype float32"});
  ExpectRefusal(trace + " --blocks 0,-1" + out, {"--blocks: is -1"});
  ExpectRefusal(trace + " --blocks 1,1" + out, {"--blocks: has 1 twice"});
  ExpectRefusal(trace + " --blocks 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16" + out,
                {"--blocks: are 17, must be at most 16"});
  ExpectRefusal(trace + " --marks -1" + out, {"--marks: is -1"});
#ifdef FLASHWOK_EMULATOR
  ExpectRefusal(trace + " --blocks 7" + out, {"--blocks: is 7, but the launch has no such block"});
#endif
}

#ifdef FLASHWOK_EMULATOR
// With the CUDA kernel on the emulator.
TEST_F(CliFakeCudaTest, TraceOfADevice) {
  Arrange("stamps");
  const std::string arguments =
      "trace --shape 1,300,500,2,1,128 --causal bottom_right --dtype bfloat16 --device cuda:1 "
      "--blocks 2,0 -o " +
      Path("t.fwtrace") + " --chrome " + Path("t.json");
  const json document = RunJson(arguments);
  const Trace trace = ParseTrace(ReadFile(Path("t.fwtrace")));
  const json& header = trace.header;
  EXPECT_EQ(header, document["header"]);
  EXPECT_EQ(header["kernel"], "cuda_forward_v3");
  Problem problem;
  problem.q = Tensor::Contiguous(nullptr, DType::kBFloat16, {1, 300, 2, 128});
  problem.k = problem.v = Tensor::Contiguous(nullptr, DType::kBFloat16, {1, 500, 1, 128});
  problem.causal = Causal::kBottomRight;
  const cuda::ForwardV3Config config = cuda::ForwardV3ConfigOf(Layout(problem));
  EXPECT_EQ(header["tile"], json({{"q", config.tile_q()}, {"kv", config.tile_kv}}));
  EXPECT_EQ(header["machine"]["name"], "cuda:1");
  EXPECT_EQ(header["lost"], 0);
  EXPECT_FALSE(header.contains("threads"));
  ASSERT_EQ(header["blocks"].size(), 2u);
  EXPECT_EQ(header["blocks"][0]["block"], 2);
  EXPECT_EQ(header["blocks"][1]["sm"], 0);
  ASSERT_EQ(trace.events.size(), header["events"].get<std::size_t>());
  std::int64_t read = 0;
  for (auto event : trace.events) {
    if (header["kinds"][event["kind"]] != "load") continue;
    read += event["bytes"];
    EXPECT_EQ(event["flags"] & header["flags"]["bound"].get<int>(), 2);
  }
  EXPECT_GT(read, 0);
  EXPECT_EQ(read, document["traffic"]["read"].get<std::int64_t>());

  // A process a block, a thread a track, on which nothing overlaps.
  const json chrome = json::parse(ReadFile(Path("t.json")));
  EXPECT_EQ(chrome["otherData"], header);
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  std::set<int> processes;
  for (const json& event : chrome["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["pid"].get<int>());
    if (event["ph"] == "X") {
      threads[{event["pid"], event["tid"]}].emplace_back(
          event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
    }
  }
  EXPECT_EQ(processes, (std::set<int>{1, 3}));
  for (const auto& [thread, spans] : threads) {
    EXPECT_TRUE(processes.contains(thread.first));
    for (std::size_t n = 1; n < spans.size(); ++n) {
      EXPECT_LT(spans[n - 1].second, spans[n].first + 1e-6) << thread.second;
    }
  }

  const Outcome text = Run(arguments + " --summary");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  EXPECT_NE(text.out.find("block 2 on SM 2"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("threads"), std::string::npos) << text.out;
}

TEST_F(CliFakeCudaTest, TraceSaysWhatIsLost) {
  Arrange("stamps");
  const Outcome outcome =
      Run("trace --shape 1,300,500,2,1,64 --dtype bfloat16 --device cuda --marks 20 -o " +
          Path("t.fwtrace"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.err.find("marks are lost"), std::string::npos) << outcome.err;
  EXPECT_GT(ParseTrace(ReadFile(Path("t.fwtrace"))).header["lost"], 0);
}
#endif

TEST_F(CliFakeCudaTest, PlanRefusesInOneLine) {
  const std::string device = " --device cuda --seqlen 16";
  for (const std::string& command : {"run -o " + Path("o.safetensors"), std::string("compare"),
                                     std::string("verify"), std::string("compare --sweep 16:32")}) {
    ExpectRefusal(command + " --dtype float16 --backward" + device, {"backward", "cuda:0"});
    ExpectRefusal(command + device, {"dtype float32", "float16 bfloat16"});
    ExpectRefusal(command + " --dtype float16 --seqlen 16 --device cuda:2",
                  {"cuda:2", "cuda:0 to cuda:1"});
    ExpectRefusal(command + " --dtype float16 --head-dim 60" + device, {"head_dim"});
  }
  ExpectRefusal("run --seqlen 16 --kernel cuda_forward_v2", {"cuda_forward_v2", "cpu"});
  ExpectRefusal("run --kernel cpu_forward_v2 --dtype float16" + device,
                {"cpu_forward_v2", "cuda:0"});
}

TEST_F(CliFakeCudaTest, FailuresOfTheDevice) {
  const std::string arguments = kHalf + std::string(" --device cuda");
  for (const std::string& command : {"run -o " + Path("o.safetensors"), std::string("compare"),
                                     std::string("verify"), std::string("compare --sweep 16:32")}) {
    Arrange("absent");
    ExpectRefusal(command + arguments, {"--device", "the driver is too old"});
    Arrange("full");
    ExpectRefusal(command + arguments, {"cuda:0", "KiB", "out of memory"});
    Arrange("copy_fails");
    ExpectRefusal(command + arguments, {"cudaMemcpy"}, 1);
    Arrange("kernel_fails");
    ExpectRefusal(command + arguments, {"illegal memory access"}, 1);
  }
}

}  // namespace
}  // namespace flashwok::test
