// flashwok trace: every tile that a run moved and computed, to a file.
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cuda/attention/stamp_log.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/registry.h"
#include "lib/command.h"
#include "lib/counter.h"
#include "lib/session.h"
#include "lib/stamps.h"
#include "lib/terminal.h"
#include "lib/timeline.h"
#include "lib/trace_file.h"

namespace flashwok::cli {
namespace {

constexpr int kWarmRuns = 10;  // on a device, so that its clock is up

struct Options {
  WorkloadOptions workload;
  RunOptions run;
  std::string output;
  std::string chrome;
  std::vector<int> blocks;
  int marks = 0;
  bool summary = false;
  bool backward = false;
  bool json = false;
};

// What is recorded of a device, with the defaults in.
struct Recorded {
  std::vector<int> blocks;
  int marks = 0;
};

Recorded AskedRecord(const Options& options, Device device) {
  const auto refuse = [](const std::string& text) { throw BadInput(text); };
  if (device.type == DeviceType::kCpu) {
    for (const auto& [flag, given] :
         {std::pair("--blocks", !options.blocks.empty()), {"--marks", options.marks != 0}}) {
      if (given) refuse(fmt::format("{}: is given, must be left out on the CPU", flag));
    }
    return {};
  }
  Recorded choice{options.blocks.empty() ? std::vector<int>{0} : options.blocks,
                  options.marks == 0 ? 1 << 14 : options.marks};
  constexpr auto kMost = static_cast<std::size_t>(cuda::StampLog::kMaxBlocks);
  if (choice.blocks.size() > kMost) {
    refuse(fmt::format("--blocks: are {}, must be at most {}", choice.blocks.size(), kMost));
  }
  std::set<int> seen;
  for (int block : choice.blocks) {
    if (block < 0) refuse(fmt::format("--blocks: is {}, must be 0 or more", block));
    if (!seen.insert(block).second) refuse(fmt::format("--blocks: has {} twice", block));
  }
  constexpr int kMostMarks = 1 << 20;
  if (choice.marks < 1 || choice.marks > kMostMarks) {
    refuse(fmt::format("--marks: is {}, must be from 1 to {}", choice.marks, kMostMarks));
  }
  return choice;
}

// That the session's kernel was built with time stamps.
void RequireTimeStamps(const Session& session) {
  if (!session.ok()) return;  // its run says why
  const cuda::Kernel* able = nullptr;
  for (const cuda::Kernel& kernel : cuda::Registry()) {
    if (!kernel.time_stamps) continue;
    if (kernel.name == session.plan().kernel) return;
    able = &kernel;
  }
  if (able != nullptr) {
    throw BadInput(fmt::format("--device: {} records no time stamps, but {} does",
                               session.plan().kernel, able->name));
  }
  throw BadInput(
      "--device: this library was built without time stamps, which a build with "
      "FLASHWOK_TIMESTAMPS=ON has");
}

std::vector<TraceEvent> TraceCpu(Session& session) {
  session.Run();  // warm: memory touched, threads started
  Recorder recorder;
  session.Run(&recorder);
  if (recorder.full()) {
    throw BadInput(
        fmt::format("the run has more than {} events, must have fewer: take a smaller "
                    "problem or larger tiles",
                    Recorder::kMaxEvents));
  }
  return recorder.Take();
}

Timeline TraceDevice(Session& session, const Recorded& choice) {
  std::vector<double> plain;
  for (int n = 0; n < kWarmRuns; ++n) plain.push_back(session.Run());
  double seconds = 0.0;
  const std::vector<std::byte> log = session.Record(choice.blocks, choice.marks, &seconds);
  Timeline timeline = MakeTimeline(ReadStamps(log), session.problem(), session.results().output,
                                   cuda::ForwardV3ConfigOf(Layout(session.problem())));
  timeline.seconds = seconds;
  timeline.plain_seconds = Summarize(plain).median;
  return timeline;
}

void Print(const Options& options, const TraceRun& run, const std::vector<TraceEvent>& events,
           const TrafficCounter& traffic) {
  fmt::print("{}\n", Describe(run.problem, run.device));
  const std::string threads =
      run.timeline == nullptr ? fmt::format(", {} threads", run.plan.num_threads) : "";
  fmt::print("{}  {} events, {} tiles skipped, tiles {} x {}{}\n",
             Paint(Colour::kAccent, run.plan.kernel), events.size(), traffic.skipped(),
             run.plan.tile_q, run.plan.tile_kv, threads);
  if (run.timeline != nullptr) {
    fmt::print("{} recorded, {} when not, with its launch\n", FormatSeconds(run.timeline->seconds),
               FormatSeconds(run.timeline->plain_seconds));
    for (const Json& block : run.timeline->blocks) {
      fmt::print("block {} on SM {} at {:.0f} MHz: {} marks\n", block["block"].get<int>(),
                 block["sm"].get<int>(), block["clock_mhz"].get<double>(),
                 block["marks"].get<std::int64_t>());
    }
  }
  const bool files = !options.output.empty() || !options.chrome.empty();
  if (options.summary || !files) {
    fmt::print("\n");
    traffic.ToTable().Print();
  }
  for (const std::string& path : {options.output, options.chrome}) {
    if (!path.empty()) fmt::print("written {}\n", path);
  }
}

void Warn(const Timeline& timeline, const Recorded& choice) {
  if (timeline.lost == 0) return;
  fmt::print(stderr, "flashwok trace: {} marks are lost, the last of each role past --marks, {}\n",
             timeline.lost, choice.marks);
}

int Execute(const Options& options) {
  const Pass pass = options.backward ? Pass::kBackward : Pass::kForward;
  const Device device = AskedDevice(options.run);
  RequireDevice(device);
  const Recorded choice = AskedRecord(options, device);
  RequireOutputs({{"--output", options.output}, {"--chrome", options.chrome}});
  const Algorithm algorithm = AskedAlgorithm(options.run);
  const Workload workload(options.workload, pass);
  Session session(workload, algorithm, MakeExecution(options.run), pass, options.run.out_dtype,
                  device);
  Timeline timeline;
  std::vector<TraceEvent> events;
  if (session.on_cpu()) {
    events = TraceCpu(session);
  } else {
    RequireTimeStamps(session);
    timeline = TraceDevice(session, choice);
    events = timeline.events;
    Warn(timeline, choice);
  }
  const TraceRun run{session.problem(), pass, session.plan(), device,
                     session.on_cpu() ? nullptr : &timeline};
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
  AddOption(*app, "--blocks", options->blocks,
            "On a CUDA device: the thread blocks to record, 0 unless given")
      ->delimiter(',')
      ->type_name("N,...");
  AddOption(*app, "--marks", options->marks,
            "On a CUDA device: how many marks of each role have room, 16384 unless given");
  app->add_flag("--summary", options->summary, "Print the bytes by tensor");
  app->add_flag("--backward", options->backward, "Trace the backward pass");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run);
  app->footer("Example: flashwok trace --shape 1,512,512,1,1,64 --algorithm v1 --chrome v1.json");
  return {app, [options] { return Execute(*options); }};
}

}  // namespace flashwok::cli
