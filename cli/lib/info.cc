// flashwok info: the machine, the kernels, and which of them would run a problem.
#include <fmt/format.h>

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
};

Json KernelsJson() {
  Json kernels = Json::array();
  for (const KernelInfo& kernel : Kernels()) {
    kernels.push_back({{"name", kernel.name},
                       {"pass", Name(kernel.pass)},
                       {"algorithm", Name(kernel.algorithm)},
                       {"device", kernel.device.type == DeviceType::kCpu ? "cpu" : "cuda"},
                       {"dtypes", kernel.dtypes},
                       {"requirement", kernel.requirement},
                       {"available", kernel.available}});
  }
  return kernels;
}

Json PlanJson(const PlanResult& plan, Pass pass, Device device) {
  Json json = {{"pass", Name(pass)}};
  if (plan.status.ok()) {
    json["kernel"] = plan.kernel;
    json["tile_q"] = plan.tile_q;
    json["tile_kv"] = plan.tile_kv;
    json["num_splits"] = plan.num_splits;
    if (device.type == DeviceType::kCpu) json["threads"] = plan.num_threads;
  } else {
    json["refused"] = plan.status.message();
  }
  json["extra_bytes"] = plan.workspace_bytes;
  json["rejections"] = Json::array();
  for (const Rejection& rejection : plan.rejections) {
    json["rejections"].push_back({{"kernel", rejection.kernel}, {"reason", rejection.reason}});
  }
  return json;
}

// Shapes alone: a synthetic problem is planned without its tensors, however large.
Json PlanAll(const Options& options, Json* problem_json) {
  const Algorithm algorithm = AskedAlgorithm(options.run);
  const Device device = AskedDevice(options.run);
  const Execution execution = MakeExecution(options.run);
  if (!options.run.out_dtype.empty()) ParseDType("--out-dtype", options.run.out_dtype);
  const Pass pass = options.backward ? Pass::kBackward : Pass::kForward;
  const Workload workload(options.workload, pass, algorithm, Workload::Data::kNone);
  *problem_json = ToJson(workload.problem);
  (*problem_json)["description"] = Describe(workload.problem, device);
  const Problem problem = ShapesOn(device, workload.problem);
  Json plans = Json::array();
  const auto plan = [&](Pass of) {
    const PlanResult result = Plan(problem, of, execution);
    if (result.status.code() == StatusCode::kInvalidArgument) workload.Check(result.status);
    plans.push_back(PlanJson(result, of, device));
  };
  plan(Pass::kForward);
  if (options.backward) plan(Pass::kBackward);
  return plans;
}

void PrintPlan(const Json& plan) {
  const auto text = [&](const char* key) { return plan[key].get<std::string>(); };
  const std::string extra = FormatBytes(plan["extra_bytes"].get<double>());
  if (plan.contains("refused")) {
    fmt::print("{:<9} {}\n", text("pass"), Paint(Colour::kBad, "refused: " + text("refused")));
  } else {
    const std::string threads =
        plan.contains("threads") ? fmt::format("threads {}, ", plan["threads"].get<int>()) : "";
    fmt::print("{:<9} {}  tiles {} x {}, splits {}, {}extra {}\n", text("pass"),
               Paint(Colour::kGood, text("kernel")), plan["tile_q"].get<int>(),
               plan["tile_kv"].get<int>(), plan["num_splits"].get<int>(), threads, extra);
  }
  for (const Json& rejection : plan["rejections"]) {
    fmt::print("          {}\n",
               Paint(Colour::kDim, "not " + rejection["kernel"].get<std::string>() + ": " +
                                       rejection["reason"].get<std::string>()));
  }
}

void PrintKernels() {
  Table table({"kernel", "pass", "dtypes", "here"});
  for (const KernelInfo& kernel : Kernels()) {
    const std::string here = kernel.available ? "yes" : "no, needs " + kernel.requirement;
    table.Row({kernel.name, Name(kernel.pass), kernel.dtypes, here},
              kernel.available ? Colour::kPlain : Colour::kDim);
  }
  table.Print();
}

int Execute(const CLI::App& app, const Options& options) {
  const bool with_problem = options.workload.has_files() || options.workload.has_shape();
  if (!with_problem) RefuseWithoutProblem(app);
  Json problem;
  const Json plans = with_problem ? PlanAll(options, &problem) : Json::array();
  const Json machine = MachineJson();
  const Json cuda_devices = CudaDevicesJson();
  if (options.json) {
    Json devices = Json::array({machine});
    devices.insert(devices.end(), cuda_devices.begin(), cuda_devices.end());
    Json document = {{"command", "info"},
                     {"version", Version()},
                     {"devices", devices},
                     {"cpu_targets", CpuTargets()},
                     {"kernels", KernelsJson()}};
    if (with_problem) document["problem"] = problem;
    if (with_problem) document["plans"] = plans;
    PrintJson(document);
    return kExitOk;
  }
  if (with_problem) {
    fmt::print("{}\n", problem["description"].get<std::string>());
    for (const Json& plan : plans) PrintPlan(plan);
    return kExitOk;
  }
  fmt::print("FlashWok {}\n", Version());
  fmt::print("device            cpu: {}, {} cores\n", machine["cpu"].get<std::string>(),
             machine["cores"].get<int>());
  for (const Json& device : cuda_devices) {
    const auto text = [&](const char* key) { return device[key].get<std::string>(); };
    if (device.contains("absent")) {
      fmt::print("                  cuda: none, {}\n", text("absent"));
    } else {
      fmt::print("                  {}: {}, compute capability {}\n", text("name"), text("gpu"),
                 text("compute_capability"));
    }
  }
  fmt::print("instruction sets  {} (best first)\n\n", fmt::join(CpuTargets(), " "));
  PrintKernels();
  return kExitOk;
}

}  // namespace

Command AddInfo(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("info", "The machine, the kernels, and which would run a problem");
  auto options = std::make_shared<Options>();
  app->add_flag("--backward", options->backward, "Also plan the backward pass");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run);
  app->footer("Example: flashwok info --shape 1,65536,65536,1,1,64 --algorithm standard");
  return {app, [app, options] { return Execute(*app, *options); }};
}

}  // namespace flashwok::cli
