// flashwok bench: our kernels, the machine's peak and PyTorch, timed in one run.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cpu/parallel_for.h"
#include "lib/bench_run.h"
#include "lib/command.h"
#include "lib/machine.h"
#include "lib/measure.h"
#include "lib/sha256.h"
#include "lib/terminal.h"

namespace flashwok::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  std::string output;
  std::string peer_python;
  std::string sources = ".";
  bool quick = false;
  bool backward = false;
  bool json = false;
  int threads = 0;
  int rounds = 9;
};

std::vector<BenchProblem> Problems(const CLI::App& app, const Options& options) {
  const int all = options.threads > 0 ? options.threads : HardwareThreads();
  if (options.workload.has_files()) {
    throw BadInput("--input: is given, must be absent: bench makes its own tensors");
  }
  if (!options.workload.has_shape()) {
    RefuseWithoutProblem(app);
    if (options.backward) {
      throw BadInput("--backward: is given without a shape; the default list has both passes");
    }
    return DefaultProblems(all, options.quick);
  }
  std::vector<BenchProblem> problems;
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (pass == Pass::kBackward && !options.backward) continue;
    BenchProblem problem;
    problem.pass = pass;
    problem.workload = options.workload;
    problem.threads = all;
    problem.algorithms.assign(std::begin(kAllAlgorithms), std::end(kAllAlgorithms));
    if (problem.workload.dtype.empty()) problem.workload.dtype = "float32";
    problems.push_back(problem);
  }
  return problems;
}

std::vector<std::string> PeerCommand(const Options& options) {
  if (options.peer_python.empty()) return {};
  const std::filesystem::path script =
      std::filesystem::path(options.sources) / "tools" / "bench_torch_cpu.py";
  if (!std::filesystem::exists(script)) {
    throw BadInput(fmt::format("--sources: is '{}', must be the source tree: {} is absent",
                               options.sources, script.string()));
  }
  return {options.peer_python, script.string(), "--serve"};
}

Json Document(const Options& options, Bench& bench, const std::vector<Json>& cells) {
  Json versions = {{"flashwok", Version()}, {"compiler", __VERSION__}};
  if (!bench.peer_version().empty()) versions["torch"] = bench.peer_version();
  Json document = {{"schema", "fw-bench/1"},
                   {"date", Today()},
                   {"device", MachineJson()},
                   {"versions", versions}};
  document["device"]["targets"] = CpuTargets();
  const std::string hash = SourcesSha256(options.sources);
  if (!hash.empty()) document["sources_sha256"] = hash;
  document["method"] = fmt::format(
      "median of up to {} rounds after a warm-up, as many as a few seconds allow, each round one "
      "call of every algorithm and of the peer in turn, after the FMA peak and the product on "
      "tiles "
      "in cache; random normal inputs; useful FLOPs; a share is the median of those of the rounds, "
      "each of the ceiling of its round; the ceilings are the best of all rounds",
      options.rounds);
  document["ceilings"] = bench.Ceilings();
  document["cells"] = cells;
  return document;
}

std::string Title(const Json& cell) {
  return fmt::format("{} {} d{} n{} {} t{}", cell["pass"].get<std::string>(),
                     cell["dtype"].get<std::string>(), cell["head_dim"].get<int>(),
                     cell["seqlen_k"].get<int>(), cell["causal"] == "none" ? "full" : "causal",
                     cell["threads"].get<int>());
}

void AddRow(Table& table, const Json& cell) {
  const auto number = [&](const char* key) { return cell[key].get<double>(); };
  const std::string algorithm = cell["algorithm"].get<std::string>();
  if (!cell.contains("ms")) {
    const std::string note = cell.contains("refused") ? "  refused" : "";
    table.Note(Title(cell) + " " + algorithm,
               "extra memory " + FormatBytes(number("extra_bytes")) + note);
    return;
  }
  std::string peer = "-";
  std::string ratio = "-";
  if (cell.contains("peers") && cell["peers"]["torch_cpu"].contains("ms")) {
    const double ms = cell["peers"]["torch_cpu"]["ms"].get<double>();
    peer = FormatSeconds(ms * 1e-3);
    ratio = fmt::format("x{:.2f}", ms / number("ms"));
  }
  const std::string share =
      cell.contains("peak_share") ? fmt::format("{:.0f} %", number("peak_share") * 100.0) : "-";
  table.Row({Title(cell) + " " + algorithm, FormatSeconds(number("ms") * 1e-3),
             fmt::format("{:.1f}", number("tflops") * 1e3), share,
             FormatBytes(number("extra_bytes")), peer, ratio});
}

void Print(const Json& document) {
  const Json& ceilings = document["ceilings"];
  const auto rate = [&](const char* key) { return ceilings[key].get<double>(); };
  fmt::print("{}\n", document["device"]["cpu"].get<std::string>());
  fmt::print(
      "GFLOPS of one thread and of all {}: FMA peak {:.1f} and {:.1f}, our product on tiles "
      "in cache {:.1f} and {:.1f}\n\n",
      document["device"]["cores"].get<int>(), rate("fma_peak_gflops"), rate("fma_peak_gflops_all"),
      rate("gemm_gflops"), rate("gemm_gflops_all"));
  Table table({"problem", "time", "GFLOPS", "of peak", "extra memory", "PyTorch", "faster"});
  for (const Json& cell : document["cells"]) AddRow(table, cell);
  table.Print();
}

int Execute(const CLI::App& app, const Options& options) {
  if (options.rounds < 1) {
    throw BadInput(fmt::format("--rounds: is {}, must be at least 1", options.rounds));
  }
  if (options.threads < 0) {
    throw BadInput(fmt::format("--threads: is {}, must be from 0", options.threads));
  }
  RequireOutputs({{"--output", options.output}});
  const std::vector<BenchProblem> problems = Problems(app, options);
  Bench bench(PeerCommand(options), options.rounds);
  std::vector<Json> cells;
  {
    Progress progress("bench", static_cast<double>(problems.size()));
    for (const BenchProblem& problem : problems) {
      for (Json& cell : bench.Run(problem)) cells.push_back(std::move(cell));
      progress.Label("bench, last " + Title(cells.back()));
      progress.Add(1.0);
    }
  }
  for (Json& cell : bench.Memory()) cells.push_back(std::move(cell));
  const Json document = Document(options, bench, cells);
  if (!options.output.empty()) WriteFile(options.output, document.dump(2) + "\n");
  if (options.json) {
    PrintJson(document);
    return kExitOk;
  }
  Print(document);
  if (!options.output.empty()) fmt::print("\nwritten {}\n", options.output);
  return kExitOk;
}

}  // namespace

Command AddBench(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("bench", "Time the kernels against the machine's peak and PyTorch");
  auto options = std::make_shared<Options>();
  app->add_option("--output,-o", options->output, "Write the record (fw-bench/1)")
      ->type_name("FILE");
  app->add_flag("--quick", options->quick, "A few small problems");
  AddOption(*app, "--rounds", options->rounds,
            "Timed rounds a problem, of which the median is kept")
      ->capture_default_str();
  app->add_option("--peer-torch", options->peer_python,
                  "Time PyTorch in turn with ours, by this Python that has torch")
      ->type_name("PYTHON");
  app->add_option("--sources", options->sources, "The source tree, for its hash and tools/")
      ->type_name("DIR")
      ->capture_default_str();
  AddOption(*app, "--threads", options->threads, "0: one and all cores in turn")
      ->capture_default_str();
  app->add_flag("--backward", options->backward, "With a shape: the backward pass too");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  app->footer("Without a shape: the default list. Example: flashwok bench --quick --json");
  return {app, [app, options] { return Execute(*app, *options); }};
}

}  // namespace flashwok::cli
