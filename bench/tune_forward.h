// Times configurations of a forward kernel beside each other on one card: in turns, so that the
// card's temperature is the same for all, without flushed caches. Each result is held against
// float64 in a few rows, and against the first configuration's in many elements.
//
// bf16, 16,384 tokens, hidden 2,048, normal random numbers.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "flashwok/attention.h"

namespace flashwok::tune {

inline void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Cell {
  int head_dim;
  std::int64_t seqlen;
  bool causal;
  std::int64_t window = -1;  // causal too: keys seen before a row's own

  std::int64_t FirstKey(std::int64_t row) const {
    return window < 0 ? 0 : std::max<std::int64_t>(row - window, 0);
  }
  double Flops() const {
    const auto n = static_cast<double>(seqlen), w = static_cast<double>(window);
    const double seen = window >= 0 ? w + 1.0 - w * (w + 1.0) / (2.0 * n) : causal ? 0.5 * n : n;
    return 4.0 * 16384 * seen * 2048;
  }
  std::string Name() const {
    return window >= 0 ? "window " + std::to_string(window) : causal ? "causal" : "full";
  }
};

// The largest |a - b| of all elements, as the bits of a float; a NaN is above every number.
__global__ void MaxDifference(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count,
                              int* worst) {
  int mine = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const float difference = __uint_as_float(std::uint32_t{a[i]} << 16) -
                             __uint_as_float(std::uint32_t{b[i]} << 16);
    mine = max(mine, __float_as_int(fabsf(difference)));
  }
  atomicMax(worst, mine);
}

struct Buffers {
  static constexpr std::int64_t kElements = 16384 * 2048;
  static constexpr std::int64_t kShift = 12345;
  static constexpr std::size_t kScratch = std::size_t{64} << 20;
  enum { kQ, kK, kV, kO, kFirst, kAgain, kCount };  // kFirst, kAgain: to hold results against

  std::uint16_t* data[kCount] = {};
  std::byte* scratch = nullptr;
  int* worst = nullptr;
  std::vector<std::uint16_t> host;  // q, k and v are different pieces of one drawing

  Buffers() : host(kElements + 2 * kShift) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::uint16_t& value : host) value = FloatToBf16(normal(random));
    for (int n = 0; n < kCount; ++n) {
      Require(cudaMalloc(&data[n], 2 * kElements), "cudaMalloc");
      if (n > kV) continue;
      Require(cudaMemcpy(data[n], Host(n), 2 * kElements, cudaMemcpyHostToDevice), "copy");
    }
    Require(cudaMalloc(&scratch, kScratch), "cudaMalloc");
    Require(cudaMalloc(&worst, sizeof(int)), "cudaMalloc");
  }
  const std::uint16_t* Host(int n) const { return host.data() + n * kShift; }
  Tensor View(int n, const Cell& cell) const {
    return Tensor::Contiguous(
        data[n], DType::kBFloat16,
        {16384 / cell.seqlen, cell.seqlen, 2048 / cell.head_dim, cell.head_dim},
        Device{DeviceType::kCuda, 0});
  }
  void KeepOutput(int n) const {
    Require(cudaMemcpy(data[n], data[kO], 2 * kElements, cudaMemcpyDeviceToDevice), "copy");
  }
  double Difference(int n) const {  // of the output now
    float value = 0.0f;
    Require(cudaMemset(worst, 0, sizeof(int)), "cudaMemset");
    MaxDifference<<<1024, 256>>>(data[kO], data[n], kElements, worst);
    Require(cudaMemcpy(&value, worst, sizeof(int), cudaMemcpyDeviceToHost), "difference");
    return static_cast<double>(value);
  }
  Problem ProblemOf(const Cell& cell) const {
    Problem problem;
    problem.q = View(kQ, cell);
    problem.k = View(kK, cell);
    problem.v = View(kV, cell);
    problem.causal = cell.causal ? Causal::kBottomRight : Causal::kNone;
    problem.window_left = cell.window;
    return problem;
  }
};

// What a candidate makes of a cell: something that starts the kernel once. An empty one: it does
// not fit on this device.
struct Candidate {
  const char* name;
  int head_dim;
  std::function<std::function<void()>(const Cell&, const Buffers&)> prepare;
};

// A row of one head of O in float64, from `token` and column `col` on.
struct ExactRow {
  std::int64_t token, col;
  std::vector<double> o;
};

inline ExactRow Exact(const Cell& cell, const Buffers& buffers, std::int64_t token,
                      std::int64_t col) {
  const std::int64_t d = cell.head_dim;
  const std::int64_t first = token / cell.seqlen * cell.seqlen;
  const std::int64_t keys = cell.causal ? token - first + 1 : cell.seqlen;
  const auto at = [&](int tensor, std::int64_t row, std::int64_t c) {
    return static_cast<double>(Bf16ToFloat(buffers.Host(tensor)[row * 2048 + col + c]));
  };
  ExactRow row{token, col, std::vector<double>(static_cast<std::size_t>(d))};
  double sum = 0.0;
  for (std::int64_t j = cell.FirstKey(token - first); j < keys; ++j) {
    double score = 0.0;
    for (std::int64_t c = 0; c < d; ++c) score += at(0, token, c) * at(1, first + j, c);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
    sum += weight;
    for (std::int64_t c = 0; c < d; ++c) {
      row.o[static_cast<std::size_t>(c)] += weight * at(2, first + j, c);
    }
  }
  for (double& value : row.o) value /= sum;
  return row;
}

// Rows spread over the cell.
inline std::vector<ExactRow> ExactRows(const Cell& cell, const Buffers& buffers) {
  constexpr int kRows = 10;
  std::vector<ExactRow> rows;
  for (int n = 0; n < kRows; ++n) {
    rows.push_back(Exact(cell, buffers, 16383 * n / (kRows - 1),
                         n * 7 % (2048 / cell.head_dim) * cell.head_dim));
  }
  return rows;
}

inline double Difference(const std::vector<ExactRow>& rows, const Buffers& buffers) {
  double worst = 0.0;
  for (const ExactRow& row : rows) {
    std::vector<std::uint16_t> bits(row.o.size());
    Require(cudaMemcpy(bits.data(), buffers.data[Buffers::kO] + row.token * 2048 + row.col,
                       2 * bits.size(), cudaMemcpyDeviceToHost),
            "copy");
    for (std::size_t c = 0; c < bits.size(); ++c) {
      const double difference = std::abs(static_cast<double>(Bf16ToFloat(bits[c])) - row.o[c]);
      if (!(difference <= worst)) worst = difference;
    }
  }
  return worst;
}

inline double Seconds(const std::function<void()>& once, int launches) {
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin), "event");
  Require(cudaEventCreate(&end), "event");
  once();
  Require(cudaEventRecord(begin), "event");
  for (int n = 0; n < launches; ++n) once();
  Require(cudaEventRecord(end), "event");
  Require(cudaEventSynchronize(end), "run");
  float ms = 0.0f;
  Require(cudaEventElapsedTime(&ms, begin, end), "event");
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return static_cast<double>(ms) * 1e-3 / launches;
}

// One line a cell: TFLOPS of each candidate, and a remark where a result is off or changes from one
// launch to the next.
inline void Compare(const std::vector<Candidate>& candidates, const Buffers& buffers,
                    const Cell& cell) {
  struct Run {
    const char* name;
    std::function<void()> once;
    std::vector<double> seconds;
    std::string remark;
  };
  constexpr double kTolerance = 0.02;
  const std::vector<ExactRow> rows = ExactRows(cell, buffers);
  std::vector<Run> runs;
  for (const Candidate& candidate : candidates) {
    if (candidate.head_dim != cell.head_dim) continue;
    Run run{candidate.name, candidate.prepare(cell, buffers), {}, {}};
    if (!run.once) continue;
    Require(cudaMemset(buffers.data[Buffers::kO], 0xFF, 2 * Buffers::kElements), "cudaMemset");
    run.once();
    Require(cudaDeviceSynchronize(), run.name);
    if (runs.empty()) buffers.KeepOutput(Buffers::kFirst);
    buffers.KeepOutput(Buffers::kAgain);
    const double worst =
        std::max(Difference(rows, buffers), buffers.Difference(Buffers::kFirst));
    if (!(worst < kTolerance)) run.remark = " (off by " + std::to_string(worst) + ")";
    run.once();
    if (buffers.Difference(Buffers::kAgain) != 0.0) run.remark += " (not repeatable)";
    runs.push_back(std::move(run));
  }
  constexpr int kRounds = 5;
  const int launches = static_cast<int>(std::clamp(4e11 / cell.Flops(), 1.0, 8.0));
  for (int round = 0; round < kRounds; ++round) {
    for (Run& run : runs) run.seconds.push_back(Seconds(run.once, launches));
  }
  std::printf("d%d %s %lld:", cell.head_dim, cell.Name().c_str(),
              static_cast<long long>(cell.seqlen));
  for (Run& run : runs) {
    std::nth_element(run.seconds.begin(), run.seconds.begin() + kRounds / 2, run.seconds.end());
    std::printf("  %s %.0f%s", run.name, cell.Flops() / run.seconds[kRounds / 2] * 1e-12,
                run.remark.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

// The program: [SEQLEN ...], or all lengths.
inline int Main(int argc, char** argv, const std::vector<Candidate>& candidates) {
  std::vector<std::int64_t> seqlens;
  for (int n = 1; n < argc; ++n) seqlens.push_back(std::atoll(argv[n]));
  if (seqlens.empty()) seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  const Buffers buffers;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t seqlen : seqlens) {
        Compare(candidates, buffers, {head_dim, seqlen, causal});
      }
    }
    Compare(candidates, buffers, {head_dim, 8192, true, 128});
  }
  return 0;
}

}  // namespace flashwok::tune
