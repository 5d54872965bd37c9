// flashwok verify: a result file, or kernels, against float64.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "lib/command.h"
#include "lib/machine.h"
#include "lib/measure.h"
#include "lib/oracle.h"
#include "lib/terminal.h"

namespace flashwok::cli {
namespace {

struct Options {
  WorkloadOptions workload;
  RunOptions run;
  std::string result;
  bool backward = false;
  bool json = false;
};

struct Verdict {
  std::string subject;  // a kernel or a file
  Pass pass = Pass::kForward;
  std::string coverage;
  std::vector<Deviation> deviations;
  std::string refused;  // why it did not run
  bool passes() const {
    return std::all_of(deviations.begin(), deviations.end(),
                       [](const Deviation& d) { return d.passes(); });
  }
};

const std::string& RequireCoverage(const Oracle& oracle, const Problem& problem) {
  if (!oracle.coverage().empty()) return oracle.coverage();
  throw BadInput(
      fmt::format("the problem has {:.3g} pairs of a query and a key, too many for the "
                  "float64 check: at most {:.3g} in one group of heads",
                  VisiblePairs(problem), Oracle::kLargestGroup));
}

// The tensors of a result file under the names that `run` gives them.
class ResultFile {
 public:
  explicit ResultFile(const std::string& path) : path_(path) {
    Require(io::ListTensors(path, &entries_));
    single_ = entries_.size() == 1 && entries_[0].name.empty();  // .npy: O alone
  }

  bool Has(const std::string& name) const {
    if (single_) return name == "o";
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const auto& entry) { return entry.name == name; });
  }

  // A tensor of this shape, or absent.
  Tensor Get(const std::string& name, const std::vector<std::int64_t>& shape, bool bhsd) {
    if (!Has(name)) return {};
    io::HostTensor& tensor = storage_.emplace_back();
    Require(io::ReadTensor(path_, single_ ? "" : name, &tensor));
    if (tensor.dtype() == DType::kInt32 || tensor.dtype() == DType::kBool) {
      throw BadInput(fmt::format("{}: {}: dtype is {}, must be one of floating point", path_, name,
                                 Name(tensor.dtype())));
    }
    Tensor view = tensor.View();
    if (bhsd && view.rank >= 3 && !name.starts_with("lse") && name != "dbias") {
      view = SwapHeads(view);
    }
    const std::vector<std::int64_t> found(view.shape.begin(), view.shape.begin() + view.rank);
    if (found != shape) {
      throw BadInput(fmt::format("{}: {}: shape is [{}], must be [{}]", path_, name,
                                 fmt::join(found, ", "), fmt::join(shape, ", ")));
    }
    return view;
  }

 private:
  std::string path_;
  std::vector<io::TensorEntry> entries_;
  bool single_ = false;
  std::deque<io::HostTensor> storage_;
};

std::vector<std::int64_t> ShapeOf(const Tensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

Verdict VerifyFile(const Options& options) {
  ResultFile file(options.result);
  if (!file.Has("o")) {
    throw BadInput(
        fmt::format("{}: holds no tensor 'o', must hold what run writes", options.result));
  }
  const bool backward = file.Has("dq") || file.Has("dk") || file.Has("dv");
  const Pass pass = backward ? Pass::kBackward : Pass::kForward;
  const Workload workload(options.workload, pass);
  const Problem& p = workload.problem;
  std::vector<std::int64_t> o_shape = ShapeOf(p.q);
  o_shape.back() = p.v.shape[p.v.rank - 1];
  std::vector<std::int64_t> lse_shape = {p.q.shape[p.q.rank - 2], p.q.shape[p.q.rank - 3]};
  if (p.q.rank == 4) lse_shape.insert(lse_shape.begin(), p.q.shape[0]);

  ForwardOutput output;
  Gradients gradients;
  output.o = file.Get("o", o_shape, workload.bhsd());
  output.lse = file.Get("lse", lse_shape, false);
  gradients.dq = file.Get("dq", ShapeOf(p.q), workload.bhsd());
  gradients.dk = file.Get("dk", ShapeOf(p.k), workload.bhsd());
  gradients.dv = file.Get("dv", ShapeOf(p.v), workload.bhsd());
  if (p.bias.present()) gradients.dbias = file.Get("dbias", ShapeOf(p.bias), false);
  const Oracle oracle(p, workload.dout, pass, true);
  Verdict verdict{options.result, pass, RequireCoverage(oracle, p), {}, ""};
  verdict.deviations = oracle.Compare(output, gradients);
  return verdict;
}

// The algorithms that were asked for: one, that of a kernel, or all.
std::vector<Algorithm> Asked(const Options& options, Pass* pass) {
  if (!options.run.kernel.empty()) {
    for (const KernelInfo& kernel : Kernels()) {
      if (kernel.name != options.run.kernel) continue;
      *pass = kernel.pass;
      if (options.run.algorithm == "all") return {kernel.algorithm};
      return {AskedAlgorithm(options.run)};
    }
    throw BadInput(
        fmt::format("--kernel: is '{}', must be one that flashwok info lists", options.run.kernel));
  }
  if (options.run.algorithm == "all") return {std::begin(kAllAlgorithms), std::end(kAllAlgorithms)};
  return {ParseAlgorithm("--algorithm", options.run.algorithm)};
}

std::vector<Verdict> VerifyKernels(const Options& options) {
  Pass pass = options.backward ? Pass::kBackward : Pass::kForward;
  const std::vector<Algorithm> algorithms = Asked(options, &pass);
  const Device device = AskedDevice(options.run);
  RequireDevice(device);
  const Execution execution = MakeExecution(options.run);
  const Workload workload(options.workload, pass);
  const Oracle oracle(workload.problem, workload.dout, pass, true);
  const std::string coverage = RequireCoverage(oracle, workload.problem);
  std::vector<Verdict> verdicts;
  for (Algorithm algorithm : algorithms) {
    Session session(workload, algorithm, execution, pass, options.run.out_dtype, device);
    Verdict verdict{Name(algorithm), pass, coverage, {}, session.refusal()};
    if (algorithms.size() == 1) workload.Check(session.status());
    if (session.ok()) {
      session.Run();
      session.Finish();
      verdict.subject = session.plan().kernel;
      const Results& results = session.results();
      verdict.deviations = oracle.Compare(results.output, results.gradients);
    }
    verdicts.push_back(std::move(verdict));
  }
  if (std::none_of(verdicts.begin(), verdicts.end(),
                   [](const Verdict& verdict) { return verdict.refused.empty(); })) {
    throw BadInput(verdicts[0].refused);
  }
  return verdicts;
}

Json VerdictJson(const Verdict& verdict) {
  Json json = {{"subject", verdict.subject}, {"pass", Name(verdict.pass)}};
  if (!verdict.refused.empty()) {
    json["refused"] = verdict.refused;
    return json;
  }
  json["checked"] = verdict.coverage;
  json["passes"] = verdict.passes();
  for (const Deviation& d : verdict.deviations) {
    json["tensors"][d.name] = {{"max_error", d.max_error},           {"rmse", d.rmse},
                               {"plain_error", d.plain_error},       {"tolerance", d.tolerance},
                               {"ratio", d.max_error / d.tolerance}, {"passes", d.passes()}};
  }
  return json;
}

void Print(const Verdict& verdict) {
  fmt::print("\n{}\n", Paint(Colour::kBold, verdict.subject));
  if (!verdict.refused.empty()) {
    fmt::print("{}\n", Paint(Colour::kDim, "refused: " + verdict.refused));
    return;
  }
  Table table({"tensor", "max error", "tolerance", "of tolerance", "rmse", "plain error"});
  for (const Deviation& d : verdict.deviations) {
    table.Row({d.name, FormatError(d.max_error), FormatError(d.tolerance),
               fmt::format("{:.0f} %", d.max_error / d.tolerance * 100.0), FormatError(d.rmse),
               FormatError(d.plain_error)},
              d.passes() ? Colour::kPlain : Colour::kBad);
  }
  table.Print();
  const auto worst =
      std::max_element(verdict.deviations.begin(), verdict.deviations.end(),
                       [](const Deviation& a, const Deviation& b) {
                         return a.max_error / a.tolerance < b.max_error / b.tolerance;
                       });
  const double ratio = worst->max_error / worst->tolerance;
  const std::string text =
      verdict.passes() ? fmt::format("passes: nearest to its limit is {}, at {:.0f} % of it",
                                     worst->name, ratio * 100.0)
                       : fmt::format("FAILS: {} is {:.3g} times its tolerance", worst->name, ratio);
  fmt::print("{}; {} checked\n", Paint(verdict.passes() ? Colour::kGood : Colour::kBad, text),
             verdict.coverage);
}

int Execute(const Options& options) {
  if (!options.result.empty() && !options.run.kernel.empty()) {
    throw BadInput("--kernel: is given with --result, must be alone");
  }
  const Device device = AskedDevice(options.run);
  if (!options.result.empty() && device.type != DeviceType::kCpu) {
    throw BadInput(fmt::format("--device: is '{}' with --result, must be cpu: no kernel runs then",
                               options.run.device));
  }
  std::vector<Verdict> verdicts;
  if (options.result.empty()) {
    verdicts = VerifyKernels(options);
  } else {
    verdicts.push_back(VerifyFile(options));
  }
  const bool passes = std::all_of(verdicts.begin(), verdicts.end(),
                                  [](const Verdict& verdict) { return verdict.passes(); });
  if (options.json) {
    Json list = Json::array();
    for (const Verdict& verdict : verdicts) list.push_back(VerdictJson(verdict));
    PrintJson({{"command", "verify"},
               {"device", NameOf(device)},
               {"passes", passes},
               {"verdicts", list}});
  } else {
    fmt::print(
        "tolerance: 2 x the error of the plain computation in the inputs' dtype, plus 1e-6 "
        "of the largest value (at least 1)\n");
    for (const Verdict& verdict : verdicts) Print(verdict);
  }
  return passes ? kExitOk : kExitFailed;
}

}  // namespace

Command AddVerify(CLI::App& root) {
  CLI::App* app = root.add_subcommand("verify",
                                      "Check a result file (--result), or else run the kernels, "
                                      "against float64; exit code 1 if out "
                                      "of tolerance");
  auto options = std::make_shared<Options>();
  options->run.algorithm = "all";
  app->add_option("--result", options->result,
                  "Check this file, written by run from the same tensors and options")
      ->type_name("FILE");
  app->add_flag("--backward", options->backward, "Check the gradients too");
  app->add_flag("--json", options->json, "One JSON document on standard output");
  AddWorkloadOptions(*app, &options->workload);
  AddRunOptions(*app, &options->run);
  app->footer("Example: flashwok verify --input layer0.safetensors --result out.npz");
  return {app, [options] { return Execute(*options); }};
}

}  // namespace flashwok::cli
