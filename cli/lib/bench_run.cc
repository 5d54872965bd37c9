#include "lib/bench_run.h"

#include <algorithm>
#include <utility>

#include "cpu/ceilings.h"
#include "cpu/parallel_for.h"
#include "lib/measure.h"

namespace flashwok::cli {
namespace {

constexpr int kMinRounds = 3;

Json Describe(const BenchProblem& problem, const Problem& p, Algorithm algorithm) {
  Json cell = ToJson(p);
  for (const char* key : {"softmax_scale", "softcap", "dropout_p"}) cell.erase(key);
  cell["pass"] = Name(problem.pass);
  cell["algorithm"] = Name(algorithm);
  cell["threads"] = problem.threads;
  return cell;
}

}  // namespace

struct Bench::Runner {
  Algorithm algorithm;
  std::unique_ptr<Session> session;
  std::vector<double> seconds;
  std::vector<double> peak_shares, gemm_shares;  // of the ceilings of the same round
};

Bench::Bench(const std::vector<std::string>& peer, int rounds) : rounds_(rounds) {
  if (!peer.empty()) peer_ = std::make_unique<Coprocess>(peer);
}

Bench::Rates Bench::MeasureRates(int threads) {
  const Rates rates{MeasureFmaPeak(threads), MeasureGemm(threads)};
  Rates& best = best_[threads];
  best.fma = std::max(best.fma, rates.fma);
  best.gemm = std::max(best.gemm, rates.gemm);
  return rates;
}

// Milliseconds of one run, or an error.
Json Bench::AskPeer(const BenchProblem& problem, const Problem& shape) {
  const Json cell = Describe(problem, shape, Algorithm::kAuto);
  Json request = {{"repeats", 1}, {"seconds", 0}};
  for (const char* key : {"pass", "dtype", "batch", "num_heads", "num_heads_kv", "seqlen_q",
                          "seqlen_k", "head_dim", "causal", "threads"}) {
    request[key] = cell[key];
  }
  const Json answer = Json::parse(peer_->Ask(request.dump()));
  if (answer.contains("torch")) peer_version_ = answer["torch"].get<std::string>();
  return answer;
}

std::vector<Json> Bench::Run(const BenchProblem& problem) {
  const Workload workload(problem.workload, problem.pass);
  Execution execution;
  execution.num_threads = problem.threads;
  std::vector<Runner> runners;
  for (Algorithm algorithm : problem.algorithms) {
    auto session = std::make_unique<Session>(workload, algorithm, execution, problem.pass);
    workload.Check(session->status());
    session->Run();  // warm: memory touched, threads started
    runners.push_back({algorithm, std::move(session), {}, {}, {}});
  }
  std::vector<double> peer_seconds;
  std::string peer_error;
  double total = 0.0;
  const double flops = UsefulFlops(workload.problem, problem.pass);
  for (int round = 0; round < rounds_ && (round < kMinRounds || total < problem.patience);
       ++round) {
    const Rates rates = MeasureRates(problem.threads);
    for (Runner& runner : runners) {
      const double seconds = runner.session->RunPass();
      runner.seconds.push_back(seconds);
      runner.peak_shares.push_back(flops / seconds / rates.fma);
      runner.gemm_shares.push_back(flops / seconds / rates.gemm);
      total += seconds;
    }
    if (peer_ == nullptr || !peer_error.empty()) continue;
    const Json answer = AskPeer(problem, workload.problem);
    if (answer.contains("error")) {
      peer_error = answer["error"].get<std::string>();
    } else {
      peer_seconds.push_back(answer["ms"].get<double>() * 1e-3);
      total += peer_seconds.back();
    }
  }
  const auto timed = [&](Json& json, std::vector<double> seconds) {
    const Timing timing = Summarize(std::move(seconds));
    json["ms"] = timing.median * 1e3;
    json["ms_min"] = timing.min * 1e3;
    json["ms_max"] = timing.max * 1e3;
    json["repeats"] = timing.repeats;
    json["tflops"] = flops / timing.median * 1e-12;
  };
  std::vector<Json> cells;
  for (Runner& runner : runners) {
    Json cell = Describe(problem, workload.problem, runner.algorithm);
    cell["kernel"] = runner.session->plan().kernel;
    timed(cell, runner.seconds);
    if (cell["dtype"] == "float32") {
      cell["peak_share"] = Summarize(runner.peak_shares).median;
      cell["gemm_share"] = Summarize(runner.gemm_shares).median;
    }
    cell["extra_bytes"] = runner.session->plan().workspace_bytes;
    if (!peer_seconds.empty()) timed(cell["peers"]["torch_cpu"], peer_seconds);
    if (!peer_error.empty()) cell["peers"]["torch_cpu"]["error"] = peer_error;
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::vector<Json> Bench::Memory() const {
  std::vector<Json> cells;
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (Algorithm algorithm : kAllAlgorithms) {
      BenchProblem problem;
      problem.pass = pass;
      problem.threads = HardwareThreads();
      const Workload workload(MemoryProblem(), pass, algorithm, Workload::Data::kNone);
      const PlanResult plan = Plan(workload.problem, pass);
      Json cell = Describe(problem, workload.problem, algorithm);
      cell["kernel"] = plan.kernel;
      cell["extra_bytes"] = plan.workspace_bytes;
      if (!plan.status.ok()) cell["refused"] = plan.status.message();
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

Json Bench::Ceilings() {
  MeasureRates(1);
  MeasureRates(HardwareThreads());
  const Rates& one = best_[1];
  const Rates& all = best_[HardwareThreads()];
  Json ceilings = {{"fma_peak_gflops", one.fma * 1e-9},
                   {"fma_peak_gflops_all", all.fma * 1e-9},
                   {"gemm_gflops", one.gemm * 1e-9},
                   {"gemm_gflops_all", all.gemm * 1e-9}};
  if (peer_ != nullptr) AddPeerGemm(&ceilings);
  return ceilings;
}

void Bench::AddPeerGemm(Json* ceilings) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const bool all : {false, true}) {
      const Json request = {
          {"pass", "gemm"}, {"dtype", dtype}, {"threads", all ? HardwareThreads() : 1}};
      const Json answer = Json::parse(peer_->Ask(request.dump()));
      if (!answer.contains("gflops")) continue;
      (*ceilings)[std::string("torch_gemm_") + dtype + "_gflops" + (all ? "_all" : "")] =
          answer["gflops"];
    }
  }
}

}  // namespace flashwok::cli
