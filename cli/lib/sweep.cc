#include "lib/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/chart.h"
#include "lib/command.h"
#include "lib/machine.h"

namespace flashwok::cli {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 20;

std::vector<std::int64_t> Lengths(const std::string& range) {
  const std::vector<std::string> ends = Split(range, ':');
  if (ends.size() != 2) {
    throw BadInput(fmt::format("--sweep: is '{}', must be FROM:TO, such as 256:8192", range));
  }
  const std::int64_t from = ParseInt("--sweep", ends[0]);
  const std::int64_t to = ParseInt("--sweep", ends[1]);
  if (from < 1 || to < from || to > kLongest) {
    throw BadInput(fmt::format("--sweep: is '{}', must rise within 1:{}", range, kLongest));
  }
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = from; length <= to; length *= 2) lengths.push_back(length);
  return lengths;
}

using Figure = std::function<double(const Measurement&)>;

double Moved(const Measurement& m) {
  return static_cast<double>(m.traffic->read() + m.traffic->written());
}
// What a caller must find beside the inputs: the results and the kernel's scratch.
double Needed(const Measurement& m) {
  return m.result_bytes + static_cast<double>(m.plan.workspace_bytes);
}
double Extra(const Measurement& m) { return static_cast<double>(m.plan.workspace_bytes); }
double Seconds(const Measurement& m) { return m.timing.median; }
double Milliseconds(const Measurement& m) { return 1e3 * Seconds(m); }
std::string FormatMilliseconds(double ms) { return FormatSeconds(1e-3 * ms); }

void PrintFigure(const SweepResult& result, const std::string& title, const Figure& figure,
                 std::string (*format)(double)) {
  fmt::print("\n{}\n", Paint(Colour::kBold, title));
  std::vector<std::string> titles = {"seqlen"};
  for (Algorithm algorithm : kAllAlgorithms) titles.push_back(Name(algorithm));
  Table table(titles);
  for (const SweepPoint& point : result.points) {
    std::vector<std::string> cells = {std::to_string(point.seqlen)};
    for (const Measurement& m : point.measurements) {
      cells.push_back(m.status.ok() ? format(figure(m)) : "refused");
    }
    table.Row(cells);
  }
  // By how much the last doubling multiplies it.
  std::vector<std::string> growth = {"last step"};
  for (std::size_t a = 0; result.points.size() > 1 && a < std::size(kAllAlgorithms); ++a) {
    const Measurement& last = result.points.back().measurements[a];
    const Measurement& before = result.points[result.points.size() - 2].measurements[a];
    const bool both = last.status.ok() && before.status.ok() && figure(before) > 0.0;
    growth.push_back(both ? fmt::format("x{:.2f}", figure(last) / figure(before)) : "-");
  }
  if (result.points.size() > 1) table.Row(growth, Colour::kAccent);
  table.Print();
}

Panel MakePanel(const SweepResult& result, const std::string& title, const Figure& figure,
                std::string (*format)(double)) {
  Panel panel{title, "seqlen N", format, {}};
  for (std::size_t a = 0; a < std::size(kAllAlgorithms); ++a) {
    Series series{a == 0 ? "standard" : fmt::format("V{}", a), {}};
    for (const SweepPoint& point : result.points) {
      const Measurement& m = point.measurements[a];
      if (m.status.ok()) series.points.emplace_back(static_cast<double>(point.seqlen), figure(m));
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace

SweepResult RunSweep(const SweepRequest& request) {
  if (request.workload.has_files()) {
    throw BadInput("--sweep: is given with tensors from files, must be over synthetic ones");
  }
  const std::vector<std::int64_t> lengths = Lengths(request.range);
  SweepResult result;
  result.pass = request.pass;
  result.device = request.device;
  double total = 0.0;
  for (std::int64_t length : lengths) total += static_cast<double>(length) * length;
  Progress progress("sweep", total * static_cast<double>(std::size(kAllAlgorithms)));
  for (std::int64_t length : lengths) {
    WorkloadOptions options = request.workload;
    options.seqlen_q = options.seqlen_k = length;
    if (options.shape.empty() && !options.num_heads) options.num_heads = 1;
    const Workload workload(options, request.pass);
    if (result.points.empty()) {
      result.problem = ToJson(workload.problem);
      result.title = Describe(workload.problem, request.device);
    }
    SweepPoint point{length, {}};
    for (Algorithm algorithm : kAllAlgorithms) {
      progress.Label(fmt::format("seqlen {} {}", length, Name(algorithm)));
      Session session(workload, algorithm, request.execution, request.pass, request.out_dtype,
                      request.device);
      point.measurements.push_back(
          Measure(session, algorithm, 3, 1.0, progress, static_cast<double>(length) * length));
    }
    if (result.points.empty() && std::none_of(point.measurements.begin(), point.measurements.end(),
                                              [](const auto& m) { return m.status.ok(); })) {
      workload.Check(point.measurements[0].status);
    }
    result.points.push_back(std::move(point));
  }
  return result;
}

Json ToJson(const SweepResult& result) {
  Json points = Json::array();
  for (const SweepPoint& point : result.points) {
    Json algorithms = Json::array();
    for (const Measurement& m : point.measurements) {
      Json json = ToJson(m);
      if (m.status.ok()) {
        if (m.traffic != nullptr) json["traffic_bytes"] = Moved(m);
        json["needed_bytes"] = Needed(m);
      }
      algorithms.push_back(json);
    }
    points.push_back({{"seqlen", point.seqlen},
                      {"flops", point.measurements[0].flops},
                      {"algorithms", algorithms}});
  }
  Json problem = result.problem;
  problem.erase("seqlen_q");
  problem.erase("seqlen_k");
  return {{"command", "compare"},
          {"device", NameOf(result.device)},
          {"pass", Name(result.pass)},
          {"problem", problem},
          {"sweep", points}};
}

void PrintSweep(const SweepResult& result) {
  fmt::print("{} pass, from {}\n", Name(result.pass), result.title);
  const bool counted = result.device.type == DeviceType::kCpu;
  if (counted) PrintFigure(result, "Bytes moved to and from slow memory", Moved, FormatBytes);
  PrintFigure(result, "Extra memory", Extra, FormatBytes);
  PrintFigure(result, "Time", Seconds, FormatSeconds);
}

void DrawSweep(const SweepResult& result, const std::string& path) {
  const Json& p = result.problem;
  const std::string title = fmt::format(
      "FlashWok on {}, {} pass: batch {}, {} head{}, head_dim {}, {}, causal {}",
      TitleOf(result.device), Name(result.pass), p["batch"].get<int>(), p["num_heads"].get<int>(),
      p["num_heads"].get<int>() == 1 ? "" : "s", p["head_dim"].get<int>(),
      p["dtype"].get<std::string>(), p["causal"].get<std::string>());
  std::vector<Panel> panels = {
      MakePanel(result, "Memory beside the inputs: results and scratch", Needed, FormatBytes)};
  if (result.device.type == DeviceType::kCpu) {
    panels.push_back(
        MakePanel(result, "Traffic with slow memory, counted from the run", Moved, FormatBytes));
  } else {
    panels.push_back(MakePanel(result, "Time", Milliseconds, FormatMilliseconds));
  }
  DrawPanels(path, title, panels);
}

}  // namespace flashwok::cli
