// Measures benchmark problems, ours and PyTorch's in turn, against the peak of the same minutes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/bench_cells.h"
#include "lib/coprocess.h"
#include "lib/session.h"

namespace flashwok::cli {

class Bench {
 public:
  // `peer`: the command of a process that times PyTorch, or empty. `rounds`: the most that a
  // problem gets.
  Bench(const std::vector<std::string>& peer, int rounds);

  // One cell of fw-bench/1 an algorithm.
  std::vector<Json> Run(const BenchProblem& problem);
  // Extra memory of every algorithm in both passes, by Plan.
  std::vector<Json> Memory() const;

  // {"fma_peak_gflops": of one thread, "fma_peak_gflops_all": of all, "gemm_gflops": of our product
  // on tiles in cache, ...}: the best seen in the run, and PyTorch's products.
  Json Ceilings();
  const std::string& peer_version() const { return peer_version_; }

 private:
  struct Runner;

  // Float32 FLOP/s of the machine.
  struct Rates {
    double fma = 0.0;
    double gemm = 0.0;
  };

  Rates MeasureRates(int threads);
  void AddPeerGemm(Json* ceilings);
  Json AskPeer(const BenchProblem& problem, const Problem& shape);

  std::unique_ptr<Coprocess> peer_;
  const int rounds_;
  std::map<int, Rates> best_;  // by threads
  std::string peer_version_;
};

}  // namespace flashwok::cli
