// Times configurations of forward V3 beside each other on one card, in turns, and holds their
// results against the first one's: for choosing the rows of cuda/config/forward_v3.h.
//
//   tune_forward_v3 [SEQLEN ...]      bf16, 16,384 tokens, hidden 2,048, full and causal
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/kernels/forward_v3.cuh"

namespace {

using flashwok::Causal;
using flashwok::Device;
using flashwok::DeviceType;
using flashwok::DType;
using flashwok::ForwardOutput;
using flashwok::Layout;
using flashwok::Problem;
using flashwok::Tensor;
using namespace flashwok::cuda;

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Candidate {
  const char* name;
  ForwardV3Config config;
  cudaError_t (*start)(const ForwardV3Params&, int, cudaStream_t);
};

template <ForwardV3Config kConfig>
constexpr Candidate Make(const char* name) {
  return {name, kConfig, StartForwardV3<ForwardV3Traits<DType::kBFloat16, kConfig, false>>};
}

const Candidate kCandidates[] = {
    Make<ForwardV3Config{64, 64, 3, 128, 3, 2, false}>("3x128 s3"),
    Make<ForwardV3Config{64, 64, 3, 128, 3, 2, true}>("3x128 s3 pp"),
    Make<ForwardV3Config{64, 64, 4, 64, 4, 2, false}>("4x64 s4"),
    Make<ForwardV3Config{64, 64, 4, 64, 4, 2, true}>("4x64 s4 pp"),
    Make<ForwardV3Config{64, 64, 2, 128, 3, 2, true}>("2x128 s3 pp"),
    Make<ForwardV3Config{128, 128, 2, 128, 2, 2, true}>("2x128 pp"),
    Make<ForwardV3Config{128, 128, 2, 128, 3, 1, true}>("2x128 s3 q1 pp"),
    Make<ForwardV3Config{128, 128, 2, 128, 2, 2, false}>("2x128"),
    Make<ForwardV3Config{128, 128, 3, 80, 2, 2, false}>("3x80"),
    Make<ForwardV3Config{128, 128, 2, 160, 2, 1, true}>("2x160 q1 pp"),
    Make<ForwardV3Config{128, 128, 2, 176, 2, 1, true}>("2x176 q1 pp"),
    Make<ForwardV3Config{256, 256, 2, 80, 2, 1, true}>("2x80 q1 pp"),
    Make<ForwardV3Config{256, 256, 2, 64, 2, 1, true}>("2x64 q1 pp"),
};

struct Buffers {
  std::uint16_t *q, *k, *v, *o;
  std::byte* scratch;
  static constexpr std::int64_t kElements = 16384 * 2048;
  static constexpr std::size_t kScratch = std::size_t{64} << 20;

  Buffers() {
    constexpr std::int64_t kShift = 12345;  // the three are different pieces of one drawing
    std::vector<std::uint16_t> host(kElements + 2 * kShift);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::uint16_t& value : host) value = flashwok::FloatToBf16(normal(random));
    const std::uint16_t* from = host.data();
    for (std::uint16_t** buffer : {&q, &k, &v}) {
      Require(cudaMalloc(buffer, 2 * kElements), "cudaMalloc");
      Require(cudaMemcpy(*buffer, from, 2 * kElements, cudaMemcpyHostToDevice), "copy");
      from += kShift;
    }
    Require(cudaMalloc(&o, 2 * kElements), "cudaMalloc");
    Require(cudaMalloc(&scratch, kScratch), "cudaMalloc");
  }
};

Tensor View(std::uint16_t* data, std::int64_t seqlen, std::int64_t head_dim) {
  return Tensor::Contiguous(data, DType::kBFloat16,
                            {16384 / seqlen, seqlen, 2048 / head_dim, head_dim},
                            Device{DeviceType::kCuda, 0});
}

class Run {
 public:
  Run(const Candidate& candidate, const Buffers& buffers, std::int64_t seqlen, bool causal,
      bool counted)
      : candidate_(candidate), scratch_(buffers.scratch) {
    const int d = candidate.config.head_dim;
    Problem problem;
    problem.q = View(buffers.q, seqlen, d);
    problem.k = View(buffers.k, seqlen, d);
    problem.v = View(buffers.v, seqlen, d);
    problem.causal = causal ? Causal::kBottomRight : Causal::kNone;
    ForwardOutput output;
    output.o = View(buffers.o, seqlen, d);
    const Layout layout(problem);
    const flashwok::Status status = MakeForwardV3Params(layout, candidate.config, output, scratch_,
                                                        EncodeWithDriver, &params_);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
    if (counted) params_.counter = reinterpret_cast<unsigned*>(scratch_);
    Require(cudaDeviceGetAttribute(&blocks_, cudaDevAttrMultiProcessorCount, 0), "attribute");
    blocks_ = std::min(blocks_, static_cast<int>(params_.schedule.total()));
  }
  void Once() const {
    if (params_.counter != nullptr) {
      Require(cudaMemsetAsync(scratch_, 0, kForwardV3Cleared), "cudaMemset");
    }
    Require(candidate_.start(params_, blocks_, nullptr), candidate_.name);
  }

 private:
  const Candidate& candidate_;
  std::byte* scratch_;
  ForwardV3Params params_;
  int blocks_ = 0;
};

float Milliseconds(const Run& run, int launches) {
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin), "event");
  Require(cudaEventCreate(&end), "event");
  run.Once();
  Require(cudaEventRecord(begin), "event");
  for (int n = 0; n < launches; ++n) run.Once();
  Require(cudaEventRecord(end), "event");
  Require(cudaEventSynchronize(end), "run");
  float ms = 0.0f;
  Require(cudaEventElapsedTime(&ms, begin, end), "event");
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return ms / static_cast<float>(launches);
}

// The first run's O of every `step`-th element, to hold the others against.
std::vector<float> Sample(const Buffers& buffers) {
  std::vector<std::uint16_t> host(Buffers::kElements);
  Require(cudaMemcpy(host.data(), buffers.o, 2 * Buffers::kElements, cudaMemcpyDeviceToHost),
          "copy");
  std::vector<float> sample;
  for (std::size_t i = 0; i < host.size(); i += 61) sample.push_back(flashwok::Bf16ToFloat(host[i]));
  return sample;
}

float Difference(const std::vector<float>& a, const std::vector<float>& b) {
  float worst = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    worst = difference <= worst ? worst : difference;
  }
  return worst;
}

void Compare(const Buffers& buffers, int head_dim, std::int64_t seqlen, bool causal) {
  std::vector<Run> runs;
  std::vector<std::string> names;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.config.head_dim != head_dim) continue;
    runs.emplace_back(candidate, buffers, seqlen, causal, false);
    names.push_back(candidate.name);
    if (!causal) continue;
    runs.emplace_back(candidate, buffers, seqlen, causal, true);
    names.push_back("counted");
  }
  std::vector<float> first, worst(runs.size());
  for (std::size_t n = 0; n < runs.size(); ++n) {
    Require(cudaMemset(buffers.o, 0xFF, 2 * Buffers::kElements), "cudaMemset");
    runs[n].Once();
    Require(cudaDeviceSynchronize(), names[n].c_str());
    const std::vector<float> sample = Sample(buffers);
    if (n == 0) first = sample;
    worst[n] = Difference(first, sample);
  }
  constexpr int kRounds = 5;
  std::vector<std::vector<float>> times(runs.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t n = 0; n < runs.size(); ++n) times[n].push_back(Milliseconds(runs[n], 8));
  }
  const double flops = 4.0 * 16384 * static_cast<double>(seqlen) * 2048 * (causal ? 0.5 : 1.0);
  std::printf("d%d %s %lld:", head_dim, causal ? "causal" : "full",
              static_cast<long long>(seqlen));
  for (std::size_t n = 0; n < runs.size(); ++n) {
    std::nth_element(times[n].begin(), times[n].begin() + kRounds / 2, times[n].end());
    std::printf("  %s %.0f", names[n].c_str(), flops / times[n][kRounds / 2] * 1e-9);
    if (!(worst[n] < 0.02f)) std::printf(" (off by %g)", static_cast<double>(worst[n]));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::int64_t> seqlens;
  for (int n = 1; n < argc; ++n) seqlens.push_back(std::atoll(argv[n]));
  if (seqlens.empty()) seqlens = {16384, 4096, 1024, 512};
  const Buffers buffers;
  for (int head_dim : {64, 128, 256}) {
    for (bool causal : {false, true}) {
      for (std::int64_t seqlen : seqlens) Compare(buffers, head_dim, seqlen, causal);
    }
  }
  return 0;
}
