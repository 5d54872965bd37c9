// flashwok trace: every tile that a run moved and computed, to a file.
#include <fmt/format.h>

#include <memory>

#include "lib/command.h"
#include "lib/counter.h"
#include "lib/session.h"
#include "lib/terminal.h"
#include "lib/trace_file.h"

namespace flashwok::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  RunOptions run;
  std::string output;
  std::string chrome;
  bool summary = false;
  bool backward = false;
  bool json = false;
};

void Print(const Options& options, const TraceRun& run, const std::vector<TraceEvent>& events,
           const TrafficCounter& traffic) {
  const std::int64_t skipped = traffic.skipped();
  fmt::print("{}\n", Describe(run.problem));
  fmt::print("{}  {} events, {} tiles skipped, tiles {} x {}, {} threads\n",
             Paint(Colour::kAccent, run.plan.kernel), events.size(), skipped, run.plan.tile_q,
             run.plan.tile_kv, run.plan.num_threads);
  const bool files = !options.output.empty() || !options.chrome.empty();
  if (options.summary || !files) {
    fmt::print("\n");
    traffic.ToTable().Print();
  }
  for (const std::string& path : {options.output, options.chrome}) {
    if (!path.empty()) fmt::print("written {}\n", path);
  }
}

int Execute(const Options& options) {
  const Pass pass = options.backward ? Pass::kBackward : Pass::kForward;
  if (AskedDevice(options.run).type != DeviceType::kCpu) {
    throw BadInput(fmt::format("--device: is '{}', must be cpu: only its kernels tell what they do",
                               options.run.device));
  }
  RequireOutputs({{"--output", options.output}, {"--chrome", options.chrome}});
  const Algorithm algorithm = AskedAlgorithm(options.run);
  const Workload workload(options.workload, pass);
  Session session(workload, algorithm, MakeExecution(options.run), pass, options.run.out_dtype);
  session.Run();  // warm: memory touched, threads started
  Recorder recorder;
  session.Run(&recorder);
  if (recorder.full()) {
    throw BadInput(
        fmt::format("the run has more than {} events, must have fewer: take a smaller "
                    "problem or larger tiles",
                    Recorder::kMaxEvents));
  }
  const TraceRun run{session.problem(), pass, session.plan()};
  const std::vector<TraceEvent> events = recorder.Take();
  TrafficCounter traffic;
  for (const TraceEvent& event : events) traffic.OnEvent(event.event);
  if (!options.output.empty()) WriteTrace(options.output, run, events);
  if (!options.chrome.empty()) WriteChromeTrace(options.chrome, run, events);
  if (!options.json) {
    Print(options, run, events, traffic);
    return kExitOk;
  }
  Json document = {{"command", "trace"},
                   {"header", TraceHeader(run, events)},
                   {"traffic", traffic.ToJson()},
                   {"skipped", traffic.skipped()}};
  if (!options.output.empty()) document["output"] = options.output;
  if (!options.chrome.empty()) document["chrome"] = options.chrome;
  PrintJson(document);
  return kExitOk;
}

}  // namespace

Command AddTrace(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("trace", "Run a problem and record each tile that it moves and computes");
  auto options = std::make_shared<Options>();
  app->add_option("--output,-o", options->output, "Write the events as fw-trace/1")
      ->type_name("FILE");
  app->add_option("--chrome", options->chrome, "Write them for chrome://tracing or ui.perfetto.dev")
      ->type_name("FILE");
  app->add_flag("--summary", options->summary, "Print the bytes by tensor");
  app->add_flag("--backward", options->backward, "Trace the backward pass");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run);
  app->footer("Example: flashwok trace --shape 1,512,512,1,1,64 --algorithm v1 --chrome v1.json");
  return {app, [options] { return Execute(*options); }};
}

}  // namespace flashwok::cli
