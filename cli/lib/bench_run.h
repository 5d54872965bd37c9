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
  // problem gets; `patience`: the seconds after which it gets no more.
  Bench(const std::vector<std::string>& peer, int rounds, double patience);

  // One cell of fw-bench/1 an algorithm.
  std::vector<Json> Run(const BenchProblem& problem);
  // Extra memory of every algorithm in both passes, by Plan.
  std::vector<Json> Memory() const;

  // {"fma_peak_gflops": of one core, "fma_peak_gflops_all": of all, ...}: the best seen in the run.
  Json Ceilings();
  // The share of the peak that each float32 cell reached; after the last measurement.
  void AddPeakShares(std::vector<Json>* cells) const;
  const std::string& peer_version() const { return peer_version_; }

 private:
  struct Runner;

  double Peak(int threads);
  Json AskPeer(const BenchProblem& problem, const Problem& shape);

  std::unique_ptr<Coprocess> peer_;
  const int rounds_;
  const double patience_;
  std::map<int, double> peaks_;  // by threads, FLOP/s
  std::string peer_version_;
};

}  // namespace flashwok::cli
