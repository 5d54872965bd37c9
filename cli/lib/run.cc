// flashwok run: attention on real tensors, results to a file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "lib/command.h"
#include "lib/machine.h"
#include "lib/session.h"
#include "lib/terminal.h"

namespace flashwok::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  RunOptions run;
  bool backward = false;
  bool json = false;
  std::string output;
};

// The results that `path` can hold: .npy takes O alone.
void RequireWritable(const std::string& path) {
  if (path.empty()) return;
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension != ".npz" && extension != ".safetensors" && extension != ".npy") {
    throw BadInput(
        fmt::format("--output: is '{}', must end in .safetensors, .npz or .npy (O alone)", path));
  }
  RequireOutputs({{"--output", path}});
}

void Write(const Results& results, const std::string& path) {
  if (path.empty()) return;
  const bool single = std::filesystem::path(path).extension() == ".npy";
  std::vector<std::pair<std::string, const io::HostTensor*>> named = results.Named();
  if (single) named.resize(1);
  Require(io::WriteTensors(path, named));
}

double RunPass(Session& session, Pass pass) {
  const double flops = UsefulFlops(session.problem(), pass);
  Progress progress(Name(pass), flops);
  ProgressObserver observer(progress);
  Observer* const watching =
      session.on_cpu() && progress.visible() && flops > 1e10 ? &observer : nullptr;
  return pass == Pass::kForward ? session.Forward(watching) : session.Backward(watching);
}

Json PassJson(const Session& session, Pass pass, double seconds) {
  const PlanResult& plan = session.plan(pass);
  const double flops = UsefulFlops(session.problem(), pass);
  Json json = {
      {"pass", Name(pass)},    {"kernel", plan.kernel},   {"algorithm", Name(plan.algorithm)},
      {"tile_q", plan.tile_q}, {"tile_kv", plan.tile_kv}, {"num_splits", plan.num_splits}};
  if (session.on_cpu()) json["threads"] = plan.num_threads;
  json["ms"] = seconds * 1e3;
  json["flops"] = flops;
  json["gflops"] = flops / seconds * 1e-9;
  json["extra_bytes"] = plan.workspace_bytes;
  return json;
}

void PrintPass(const Json& pass) {
  const std::string threads =
      pass.contains("threads") ? fmt::format("{} threads, ", pass["threads"].get<int>()) : "";
  fmt::print("{:<9} {}  {}  {:.1f} GFLOPS  extra {}  ({}tiles {} x {})\n",
             pass["pass"].get<std::string>(),
             Paint(Colour::kAccent, pass["kernel"].get<std::string>()),
             Paint(Colour::kBold, FormatSeconds(pass["ms"].get<double>() * 1e-3)),
             pass["gflops"].get<double>(), FormatBytes(pass["extra_bytes"].get<double>()), threads,
             pass["tile_q"].get<int>(), pass["tile_kv"].get<int>());
}

int Execute(const Options& options) {
  const Pass pass = options.backward ? Pass::kBackward : Pass::kForward;
  if (!options.workload.has_files() && !options.workload.has_shape()) {
    throw BadInput("--q: is absent, must be given with --k and --v, or --input, or --shape");
  }
  RequireWritable(options.output);
  const Device device = AskedDevice(options.run);
  RequireDevice(device);
  const Execution execution = MakeExecution(options.run);
  const Algorithm algorithm = AskedAlgorithm(options.run);
  const Workload workload(options.workload, pass);
  Session session(workload, algorithm, execution, pass, options.run.out_dtype, device);
  workload.Check(session.status());

  if (!session.on_cpu()) session.Forward();  // warm: kernels loaded
  Json passes = Json::array();
  const double forward = RunPass(session, Pass::kForward);
  passes.push_back(PassJson(session, Pass::kForward, forward));
  if (options.backward) {
    const double backward = RunPass(session, Pass::kBackward);
    passes.push_back(PassJson(session, Pass::kBackward, backward));
  }
  session.Finish();
  Write(session.results(), options.output);
  if (options.json) {
    Json document = {{"command", "run"},
                     {"device", NameOf(device)},
                     {"problem", ToJson(session.problem())},
                     {"runs", passes}};
    if (!options.output.empty()) document["output"] = options.output;
    PrintJson(document);
    return kExitOk;
  }
  fmt::print("{}\n", Describe(session.problem(), device));
  for (const Json& line : passes) PrintPass(line);
  if (!options.output.empty()) fmt::print("written   {}\n", options.output);
  return kExitOk;
}

}  // namespace

Command AddRun(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "Compute attention and write the results");
  auto options = std::make_shared<Options>();
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run);
  app->add_flag("--backward", options->backward, "Also the gradients; needs --dout");
  app->add_option("--output,-o", options->output,
                  "Write o and lse (dq, dk, dv, dbias) to a .safetensors or .npz file; o to a .npy")
      ->type_name("FILE");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  app->footer("Example: flashwok run --input layer0.safetensors --causal bottom_right -o out.npz");
  return {app, [options] { return Execute(*options); }};
}

}  // namespace flashwok::cli
