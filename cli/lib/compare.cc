// flashwok compare: the four algorithms on one problem, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "common/dtype.h"
#include "lib/chart.h"
#include "lib/command.h"
#include "lib/machine.h"
#include "lib/measure.h"
#include "lib/oracle.h"
#include "lib/sweep.h"
#include "lib/terminal.h"

namespace flashwok::cli {
namespace {

constexpr double kPatience = 6.0;  // seconds of timed runs an algorithm

struct Options {
  WorkloadOptions workload;
  RunOptions run;
  bool backward = false;
  bool json = false;
  bool no_oracle = false;
  int repeats = 5;
  bool sweep = false;
  std::string sweep_range = "256:8192";
  std::string picture;
};

struct Entry {
  std::unique_ptr<Session> session;
  Measurement measurement;
  std::vector<Deviation> deviations;
};

struct Comparison {
  Pass pass;
  double flops = 0.0;
  std::vector<Entry> entries;
  std::string coverage;             // of the float64 check; empty: none was made
  std::optional<double> agreement;  // largest difference between two algorithms, any result

  bool counted() const { return entries[0].session->on_cpu(); }  // the bytes
};

// The largest spread of one element of a result over the algorithms that ran.
double Spread(const std::vector<Tensor>& results) {
  double spread = 0.0;
  for (std::int64_t i = 0; i < results[0].num_elements(); ++i) {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    int nans = 0;
    for (const Tensor& result : results) {
      const double value = LoadAsFloat(result.data, result.dtype, i);
      low = std::min(low, value);
      high = std::max(high, value);
      nans += std::isnan(value);
    }
    if (nans == static_cast<int>(results.size()) || low == high) continue;
    spread = nans > 0 ? std::numeric_limits<double>::infinity() : std::max(spread, high - low);
  }
  return spread;
}

std::optional<double> Agreement(const std::vector<Entry>& entries) {
  std::vector<const Results*> ran;
  for (const Entry& entry : entries) {
    if (entry.measurement.status.ok()) ran.push_back(&entry.session->results());
  }
  if (ran.size() < 2) return std::nullopt;
  double spread = 0.0;
  const std::size_t count = ran[0]->Named().size();
  for (std::size_t n = 0; n < count; ++n) {
    std::vector<Tensor> results;
    for (const Results* result : ran) results.push_back(result->Named()[n].second->View());
    spread = std::max(spread, Spread(results));
  }
  return spread;
}

// Of a pass that none of the four can run, throws why.
Comparison Planned(const Workload& workload, const Options& options, Pass pass) {
  Comparison comparison;
  comparison.pass = pass;
  comparison.flops = UsefulFlops(workload.problem, pass);
  const Device device = AskedDevice(options.run);
  const Execution execution = MakeExecution(options.run);
  for (Algorithm algorithm : kAllAlgorithms) {
    comparison.entries.emplace_back().session = std::make_unique<Session>(
        workload, algorithm, execution, pass, options.run.out_dtype, device);
  }
  if (std::none_of(comparison.entries.begin(), comparison.entries.end(),
                   [](const Entry& entry) { return entry.session->ok(); })) {
    workload.Check(comparison.entries[0].session->status());
  }
  return comparison;
}

void Compare(const Workload& workload, const Options& options, Comparison* comparison) {
  const Pass pass = comparison->pass;
  {
    Progress progress("", static_cast<double>(std::size(kAllAlgorithms)));
    for (std::size_t n = 0; n < comparison->entries.size(); ++n) {
      Entry& entry = comparison->entries[n];
      progress.Label(fmt::format("{} {}", Name(pass), Name(kAllAlgorithms[n])));
      entry.measurement =
          Measure(*entry.session, kAllAlgorithms[n], options.repeats, kPatience, progress, 1.0);
    }
  }
  comparison->agreement = Agreement(comparison->entries);
  if (options.no_oracle) return;
  const Oracle oracle(workload.problem, workload.dout, pass, false);
  comparison->coverage = oracle.coverage();
  for (Entry& entry : comparison->entries) {
    if (!entry.measurement.status.ok() || oracle.coverage().empty()) continue;
    const Results& results = entry.session->results();
    entry.deviations = oracle.Compare(results.output, results.gradients);
  }
}

Json ComparisonJson(const Comparison& comparison) {
  Json algorithms = Json::array();
  for (const Entry& entry : comparison.entries) {
    Json json = ToJson(entry.measurement);
    if (!entry.deviations.empty()) {
      json["max_error"] = MaxError(entry.deviations);
      for (const Deviation& d : entry.deviations) {
        json["errors"][d.name] = {{"max_error", d.max_error}, {"rmse", d.rmse}};
      }
    }
    algorithms.push_back(json);
  }
  Json json = {{"pass", Name(comparison.pass)}, {"flops", comparison.flops}};
  if (comparison.agreement) json["agreement"] = *comparison.agreement;
  if (!comparison.coverage.empty()) json["checked"] = comparison.coverage;
  json["algorithms"] = algorithms;
  return json;
}

void PrintRow(Table& table, const Entry& entry, bool fastest) {
  const Measurement& m = entry.measurement;
  if (!m.status.ok()) {
    table.Note(Name(m.algorithm), "refused: " + m.refusal);
    return;
  }
  const auto bytes = [](auto count) { return FormatBytes(static_cast<double>(count)); };
  std::array<std::string, 3> moved = {"-", "-", "-"};
  if (m.traffic != nullptr) {
    moved = {bytes(m.traffic->read()), bytes(m.traffic->written()), bytes(m.model_bytes)};
  }
  table.Row({Name(m.algorithm), FormatSeconds(m.timing.median), fmt::format("{:.1f}", m.gflops()),
             moved[0], moved[1], moved[2], bytes(m.plan.workspace_bytes),
             entry.deviations.empty() ? "-" : FormatError(MaxError(entry.deviations))},
            fastest ? Colour::kGood : Colour::kPlain);
}

void Print(const Comparison& comparison) {
  fmt::print("\n{}\n", Paint(Colour::kBold,
                             fmt::format("{}, {} in each, the same in all four",
                                         Name(comparison.pass), FormatFlops(comparison.flops))));
  Table table({"algorithm", "time", "GFLOPS", "read", "written", "by formula", "extra memory",
               "max error"});
  double best = std::numeric_limits<double>::infinity();
  for (const Entry& entry : comparison.entries) {
    if (entry.measurement.status.ok()) best = std::min(best, entry.measurement.timing.median);
  }
  bool as_modelled = true;
  for (const Entry& entry : comparison.entries) {
    const Measurement& m = entry.measurement;
    PrintRow(table, entry, m.timing.median == best);
    as_modelled = as_modelled && (!m.status.ok() || m.as_modelled());
  }
  table.Print();
  if (comparison.agreement) fmt::print("They agree to {}. ", FormatError(*comparison.agreement));
  fmt::print("{}\n", comparison.coverage.empty()
                         ? "Not checked against float64."
                         : "Max error against float64 over " + comparison.coverage + ".");
  if (!comparison.counted()) return;
  fmt::print("Bytes read and written {} the formula's.\n",
             as_modelled ? "add up to" : "do not add up to");
}

int Sweep(const Options& options) {
  SweepRequest request;
  request.range = options.sweep_range;
  request.pass = options.backward ? Pass::kBackward : Pass::kForward;
  request.workload = options.workload;
  request.device = AskedDevice(options.run);
  request.execution = MakeExecution(options.run);
  request.out_dtype = options.run.out_dtype;
  const SweepResult result = RunSweep(request);
  if (!options.picture.empty()) DrawSweep(result, options.picture);
  if (options.json) {
    PrintJson(ToJson(result));
  } else {
    PrintSweep(result);
    if (!options.picture.empty()) fmt::print("\nwritten {}\n", options.picture);
  }
  return kExitOk;
}

int Execute(const Options& options) {
  if (options.repeats < 1) {
    throw BadInput(fmt::format("--repeats: is {}, must be at least 1", options.repeats));
  }
  if (!options.picture.empty()) {
    if (!options.sweep) throw BadInput("--picture: is given without --sweep, which it draws");
    RequirePicture(options.picture);
    RequireOutputs({{"--picture", options.picture}});
  }
  const Device device = AskedDevice(options.run);
  RequireDevice(device);
  if (options.sweep) return Sweep(options);
  const Workload workload(options.workload, options.backward ? Pass::kBackward : Pass::kForward);
  std::vector<Comparison> comparisons;
  comparisons.push_back(Planned(workload, options, Pass::kForward));
  if (options.backward) comparisons.push_back(Planned(workload, options, Pass::kBackward));
  for (Comparison& comparison : comparisons) Compare(workload, options, &comparison);
  if (options.json) {
    Json passes = Json::array();
    for (const Comparison& comparison : comparisons) passes.push_back(ComparisonJson(comparison));
    PrintJson({{"command", "compare"},
               {"device", NameOf(device)},
               {"problem", ToJson(workload.problem)},
               {"passes", passes}});
    return kExitOk;
  }
  fmt::print("{}\n", Describe(workload.problem, device));
  for (const Comparison& comparison : comparisons) Print(comparison);
  return kExitOk;
}

}  // namespace

Command AddCompare(CLI::App& root) {
  CLI::App* app = root.add_subcommand("compare", "All four algorithms on one problem, in a table");
  auto options = std::make_shared<Options>();
  app->add_flag("--backward", options->backward, "Also the backward pass");
  AddOption(*app, "--repeats", options->repeats, "Timed runs, of which the median is shown")
      ->capture_default_str();
  app->add_flag("--no-oracle", options->no_oracle, "Leave out the float64 check");
  app->add_option_function<std::string>(
         "--sweep",
         [options](const std::string& range) {
           options->sweep = true;
           if (!range.empty()) options->sweep_range = range;
         },
         "Over seqlen, doubling within FROM:TO; default 256:8192, one head")
      ->expected(0, 1)
      ->type_name("FROM:TO");
  app->add_option("--picture", options->picture, "Draw the sweep to a .svg or .png")
      ->type_name("FILE");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run, false);
  app->footer("Example: flashwok compare --shape 1,4096,4096,8,8,64 --causal bottom_right");
  return {app, [options] { return Execute(*options); }};
}

}  // namespace flashwok::cli
