// Times configurations of forward V3: for choosing the rows of cuda/config/forward_v3.h. See
// tune_forward.h.
//
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=sm_90a -Isrc -Iinclude -Ibench
//        -Ibuild/cuda/generated bench/tune_forward_v3.cu
//        src/cuda/{forward_params,forward_v3_setup,driver,device}.cc -o tune_forward_v3
//   tune_forward_v3 [SEQLEN ...]
#include "cuda/driver.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/kernels/forward_v3_launch.cuh"
#include "tune_forward.h"

namespace {

using flashwok::DType;
using flashwok::ForwardOutput;
using flashwok::Layout;
using flashwok::Problem;
using flashwok::Status;
using flashwok::tune::Buffers;
using flashwok::tune::Candidate;
using flashwok::tune::Cell;
using flashwok::tune::Require;
using namespace flashwok::cuda;

template <ForwardV3Config kConfig>
Candidate Make(const char* name) {
  const auto prepare = [=](const Cell& cell, const Buffers& buffers) -> std::function<void()> {
    const Problem problem = buffers.ProblemOf(cell);
    ForwardOutput output;
    output.o = buffers.View(Buffers::kO, cell);
    ForwardV3Params params;
    const Status status = MakeForwardV3Params(Layout(problem), kConfig, output, buffers.scratch,
                                              EncodeWithDriver, &params);
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s\n", name, status.message().c_str());
      return {};
    }
    int blocks = 0;
    Require(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "attribute");
    blocks = std::min(blocks, static_cast<int>(params.schedule.total()));
    return [=] {
      using Traits = ForwardV3Traits<DType::kBFloat16, kConfig, false>;
      Require(StartForwardV3<Traits>(params, blocks, nullptr), name);
    };
  };
  return {name, kConfig.head_dim, prepare};
}

// consumers x keys, s: stages of K and V, q: of Q, pp: ping-pong.
std::vector<Candidate> Candidates() {
  return {
      Make<ForwardV3Config{64, 64, 3, 128, 4, 2, false}>("3x128 s4"),
      Make<ForwardV3Config{64, 64, 4, 64, 8, 2, false}>("4x64 s8"),
      Make<ForwardV3Config{64, 64, 4, 64, 10, 1, false}>("4x64 s10 q1"),
      Make<ForwardV3Config{128, 128, 2, 128, 3, 1, true}>("2x128 s3 q1 pp"),
      Make<ForwardV3Config{128, 128, 3, 80, 4, 1, false}>("3x80 s4 q1"),
      Make<ForwardV3Config{128, 128, 3, 64, 5, 1, false}>("3x64 s5 q1"),
      Make<ForwardV3Config{128, 128, 3, 64, 4, 2, false}>("3x64 s4"),
      Make<ForwardV3Config{256, 256, 2, 80, 2, 1, true}>("2x80 q1 pp"),
      Make<ForwardV3Config{256, 256, 2, 64, 2, 1, true}>("2x64 q1 pp"),
  };
}

}  // namespace

int main(int argc, char** argv) { return flashwok::tune::Main(argc, argv, Candidates()); }
