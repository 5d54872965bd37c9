// What the command line measures, draws and records.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "flashwok/attention.h"
#include "lib/bench_cells.h"
#include "tests/cli_test.h"
#include "tests/read_trace.h"

namespace flashwok::test {
namespace {

using nlohmann::json;

TEST_F(CliTest, CompareSetsFourAlgorithmsSideBySide) {
  const json document =
      RunJson("compare --input " + std::string(Data("minilm_layer0.safetensors")) +
              " --backward --repeats 1");
  ASSERT_EQ(document["passes"].size(), 2u);
  for (const json& pass : document["passes"]) {
    EXPECT_GT(pass["flops"].get<double>(), 0.0);
    EXPECT_EQ(pass["checked"], "every row");
    EXPECT_LT(pass["agreement"].get<double>(), 1e-2);
    ASSERT_EQ(pass["algorithms"].size(), 4u);
    for (const json& algorithm : pass["algorithms"]) {
      EXPECT_LT(algorithm["max_error"].get<double>(), 1e-2);
      EXPECT_GT(algorithm["traffic"]["read"].get<double>(), 0.0);
      std::int64_t read = 0;
      for (const json& tensor : algorithm["traffic"]["tensors"]) {
        read += tensor["read"].get<std::int64_t>();
      }
      EXPECT_EQ(read, algorithm["traffic"]["read"].get<std::int64_t>());
      EXPECT_EQ(read + algorithm["traffic"]["written"].get<std::int64_t>(),
                algorithm["model_bytes"].get<std::int64_t>());
    }
  }
}

// Keys past the key length, sums of a narrow dQ and keys split among workers have bytes of their
// own.
TEST_F(CliTest, CompareShowsTheFormulaBesideTheCount) {
  for (const char* problem : {"--shape 2,40,70,4,2,16 --seqused-k 70,33 --dtype bfloat16",
                              "--shape 1,4,5000,1,1,16 --threads 3"}) {
    const Outcome table = Run(std::string("compare --backward --repeats 1 --no-oracle ") + problem);
    EXPECT_EQ(table.code, 0) << table.err;
    EXPECT_NE(table.out.find("by formula"), std::string::npos);
    EXPECT_NE(table.out.find("add up to the formula's"), std::string::npos);
    EXPECT_EQ(table.out.find("do not add up"), std::string::npos) << table.out;
  }
}

TEST_F(CliTest, CompareShowsARefusalWithItsFigure) {
  const std::string arguments =
      "compare --seqlen 512 --heads 1 --repeats 1 --threads 1 --workspace-limit 2MiB";
  const json document = RunJson(arguments);
  const json& standard = document["passes"][0]["algorithms"][0];
  EXPECT_NE(standard["refused"].get<std::string>().find("scratch memory"), std::string::npos);
  EXPECT_GT(standard["extra_bytes"].get<std::int64_t>(), 2 << 20);
  EXPECT_TRUE(document["passes"][0]["algorithms"][2].contains("ms"));
  const Outcome table = Run(arguments);
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("refused"), std::string::npos);
}

TEST_F(CliTest, SweepGrowsAsItShould) {
  const json document =
      RunJson("compare --sweep 256:1024 --threads 1 --picture " + Path("sweep.svg"));
  ASSERT_EQ(document["sweep"].size(), 3u);
  const auto figure = [&](int point, int algorithm, const char* key) {
    return document["sweep"][point]["algorithms"][algorithm][key].get<double>();
  };
  EXPECT_GT(figure(2, 0, "extra_bytes"), 2.5 * figure(1, 0, "extra_bytes"));
  EXPECT_LT(figure(2, 2, "extra_bytes"), 1.1 * figure(1, 2, "extra_bytes"));
  EXPECT_GT(figure(2, 0, "traffic_bytes"), 3.0 * figure(2, 2, "traffic_bytes"));
  EXPECT_EQ(figure(2, 0, "traffic_bytes"), figure(2, 0, "model_bytes"));
  EXPECT_NE(ReadFile(Path("sweep.svg")).find("<svg"), std::string::npos);
  EXPECT_EQ(Run("compare --sweep 64:128 --picture " + Path("sweep.png")).code, 0);
  EXPECT_EQ(ReadFile(Path("sweep.png")).substr(1, 3), "PNG");
  EXPECT_EQ(FilesLeft(), 2);
}

TEST_F(CliTest, TraceHoldsEveryByteOfTheRun) {
  for (const char* algorithm : {"standard", "v1", "v2", "v3"}) {
    const json document =
        RunJson("trace --shape 1,256,256,2,2,32 --causal bottom_right --threads 2 --algorithm " +
                std::string(algorithm) + " -o " + Path("t.fwtrace"));
    const Trace trace = ParseTrace(ReadFile(Path("t.fwtrace")));
    EXPECT_EQ(trace.header, document["header"]);
    EXPECT_EQ(trace.header["schema"], "fw-trace/1");
    EXPECT_EQ(trace.header["algorithm"], algorithm);
    ASSERT_EQ(trace.events.size(), trace.header["events"].get<std::size_t>());
    std::int64_t read = 0;
    std::int64_t flops = 0;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      auto event = trace.events[i];
      if (trace.header["kinds"][event["kind"]] == "load") read += event["bytes"];
      flops += event["flops"];
      EXPECT_GE(event["duration"], 0);
      EXPECT_LT(event["dependency"], static_cast<std::int64_t>(i));
      if (event["dependency"] >= 0) {
        EXPECT_EQ(trace.events[event["dependency"]].at("track"), event["track"]);
      }
    }
    EXPECT_EQ(read, document["traffic"]["read"].get<std::int64_t>());
    EXPECT_GE(flops, 2 * 2 * 2 * 32 * 256 * 257 / 2);  // at least the useful ones
  }
}

TEST_F(CliTest, ChromeTraceNests) {
  RunJson("trace --shape 1,256,256,2,1,32 --backward --algorithm v3 --chrome " + Path("c.json"));
  const json document = json::parse(ReadFile(Path("c.json")));
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;  // in ns
  int names = 0;
  for (const json& event : document["traceEvents"]) {
    names += event["name"] == "thread_name";
    if (event["ph"] != "X") continue;
    const std::int64_t start = std::llround(event["ts"].get<double>() * 1e3);
    const std::int64_t end = start + std::llround(event["dur"].get<double>() * 1e3);
    tracks[event["tid"]].emplace_back(start, end);
    const bool copy = event["cat"] == "load" || event["cat"] == "store";
    EXPECT_EQ(event["tid"].get<int>() % 2, copy ? 1 : 0);
  }
  EXPECT_EQ(names, 2 * static_cast<int>(document["otherData"]["tracks"].size()));
  for (auto& [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<std::int64_t> open;
    for (const auto& [start, end] : spans) {
      while (!open.empty() && open.back() <= start) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << "track " << track;
      open.push_back(end);
    }
  }
}

TEST_F(CliTest, TraceSummaryListsTensors) {
  const Outcome outcome = Run("trace --seqlen 64 --heads 1 --algorithm standard --summary");
  EXPECT_EQ(outcome.code, 0);
  for (const char* tensor : {"Q ", "K ", "V ", "S ", "P ", "O ", "all "}) {
    EXPECT_NE(outcome.out.find(tensor), std::string::npos) << tensor;
  }
}

TEST_F(CliTest, BenchRecordsCells) {
  const json document = RunJson(
      "bench --shape 1,64,64,2,2,32 --backward --rounds 1 --threads 1 "
      "--sources " FLASHWOK_SOURCE_DIR " -o " +
      Path("b.json"));
  EXPECT_EQ(document, json::parse(ReadFile(Path("b.json"))));
  EXPECT_EQ(document["schema"], "fw-bench/1");
  EXPECT_EQ(document["sources_sha256"].get<std::string>().size(), 64u);
  for (const char* key : {"date", "device", "versions", "method", "ceilings", "cells"}) {
    EXPECT_TRUE(document.contains(key)) << key;
  }
  for (const char* key :
       {"fma_peak_gflops", "fma_peak_gflops_all", "gemm_gflops", "gemm_gflops_all"}) {
    EXPECT_GT(document["ceilings"][key].get<double>(), 0.0) << key;
  }
  int timed = 0;
  bool refused = false;
  for (const json& cell : document["cells"]) {
    timed += cell.contains("ms");
    for (const char* key :
         {"pass", "algorithm", "kernel", "dtype", "head_dim", "head_dim_v", "causal", "batch",
          "seqlen_q", "seqlen_k", "num_heads", "num_heads_kv", "threads", "extra_bytes"}) {
      EXPECT_TRUE(cell.contains(key)) << key;
    }
    for (const char* key : {"ms_min", "ms_max", "tflops", "peak_share", "gemm_share"}) {
      EXPECT_EQ(cell.contains(key), cell.contains("ms")) << key;
    }
    refused = refused || (cell["algorithm"] == "standard" && cell.contains("refused") &&
                          cell["seqlen_k"] == 65536);
  }
  EXPECT_EQ(timed, 8);
  EXPECT_TRUE(refused);
}

// What the README tables show, for one thread and for all.
TEST(BenchProblems, CoverTheTables) {
  std::set<std::string> found;
  for (const cli::BenchProblem& problem : cli::DefaultProblems(2, false)) {
    const cli::WorkloadOptions& shape = problem.workload;
    EXPECT_EQ(shape.num_heads, 8);
    EXPECT_EQ(shape.seqlen, 4096);
    const std::vector<Algorithm>& algorithms = problem.algorithms;
    EXPECT_EQ(algorithms.size(), problem.pass == Pass::kForward ? 4u : 3u);
    for (Algorithm algorithm : {Algorithm::kStandard, Algorithm::kV2, Algorithm::kV3}) {
      EXPECT_EQ(std::count(algorithms.begin(), algorithms.end(), algorithm), 1);
    }
    found.insert(std::string(Name(problem.pass)) + " " + shape.dtype + " " +
                 std::to_string(*shape.head_dim) + " " + shape.causal + " " +
                 std::to_string(problem.threads));
  }
  EXPECT_EQ(found.size(), 32u);
  EXPECT_TRUE(found.contains("backward bfloat16 128 bottom_right 2"));
  EXPECT_EQ(cli::DefaultProblems(1, false).size(), 16u);
}

// A peer that answers like PyTorch's.
TEST_F(CliTest, BenchAsksAPeerInTurn) {
  std::filesystem::create_directories(Path("tree/tools"));
  std::ofstream(Path("tree/tools/bench_torch_cpu.py"))
      << "while read -r cell; do echo '{\"ms\": 2.0, \"gflops\": 1.0, \"torch\": \"0.0\"}'; done\n";
  const std::string arguments = "bench --shape 1,64,64,2,2,32 --rounds 2 --threads 1 --sources " +
                                Path("tree") + " --peer-torch ";
  const json document = RunJson(arguments + "sh");
  EXPECT_EQ(document["versions"]["torch"], "0.0");
  EXPECT_EQ(document["ceilings"]["torch_gemm_float32_gflops"], 1.0);
  EXPECT_EQ(document["ceilings"]["torch_gemm_bfloat16_gflops_all"], 1.0);
  EXPECT_EQ(document["cells"][0]["peers"]["torch_cpu"]["ms"], 2.0);
  const Outcome broken = Run(arguments + "false");
  EXPECT_EQ(broken.code, 1);
  EXPECT_NE(broken.err.find("ended without an answer"), std::string::npos) << broken.err;
}

TEST_F(CliTest, InfoListsEveryKernelAndPlans) {
  const json document = RunJson("info --shape 1,65536,65536,1,1,64 --algorithm standard");
  EXPECT_EQ(document["kernels"].size(), Kernels().size());
  EXPECT_EQ(document["version"], Version());
  EXPECT_NE(document["plans"][0]["refused"].get<std::string>().find("32.0 GiB"), std::string::npos);
  EXPECT_FALSE(document["plans"][0]["rejections"].empty());
  const Outcome text = Run("info");
  for (const KernelInfo& kernel : Kernels()) {
    EXPECT_NE(text.out.find(kernel.name), std::string::npos);
  }
}

}  // namespace
}  // namespace flashwok::test
