// Times configurations of forward V2: for choosing the rows of cuda/config/forward_v2.h. See
// tune_forward.h.
//
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=sm_90a -Isrc -Iinclude -Ibench
//        bench/tune_forward_v2.cu src/cuda/forward_params.cc -o tune_forward_v2
//   tune_forward_v2 [SEQLEN ...]
#include "cuda/forward_params.h"
#include "cuda/kernels/forward_v2.cuh"
#include "tune_forward.h"

namespace {

using flashwok::DType;
using flashwok::ForwardOutput;
using flashwok::Layout;
using flashwok::Problem;
using flashwok::tune::Buffers;
using flashwok::tune::Candidate;
using flashwok::tune::Cell;
using flashwok::tune::Require;
using namespace flashwok::cuda;

// `persistent`: as many thread blocks as fit on the device, or one a Q tile.
template <ForwardV2Config kConfig>
Candidate Make(const char* name, bool persistent) {
  using Traits = ForwardV2Traits<DType::kBFloat16, kConfig, true>;
  const auto prepare = [=](const Cell& cell, const Buffers& buffers) -> std::function<void()> {
    int limit = 0, multiprocessors = 0;
    Require(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            "attribute");
    Require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
            "attribute");
    if (sizeof(ForwardV2Storage<Traits>) > static_cast<std::size_t>(limit)) return {};
    const Problem problem = buffers.ProblemOf(cell);
    ForwardOutput output;
    output.o = buffers.View(Buffers::kO, cell);
    const ForwardParams params = MakeForwardParams(Layout(problem), output);
    const Schedule schedule = MakeQTileSchedule(params, Traits::kTileQ);
    const std::uint32_t blocks =
        persistent ? static_cast<std::uint32_t>(multiprocessors * Traits::kResident) : UINT32_MAX;
    return [=] { Require(LaunchForwardV2<Traits>(params, schedule, blocks, nullptr), name); };
  };
  return {name, kConfig.head_dim, prepare};
}

// rows x keys, warps, blocks an SM; r: those alone run, and take one Q tile after the other.
const std::vector<Candidate> kCandidates = {
    Make<ForwardV2Config{64, 99, 128, 64, 4, 3, 8, 1}>("128x64w4b3", false),
    Make<ForwardV2Config{64, 99, 128, 64, 4, 3, 8, 1}>("128x64w4b3r", true),
    Make<ForwardV2Config{64, 163, 128, 128, 4, 2, 8, 1}>("128x128w4b2r", true),

    Make<ForwardV2Config{128, 227, 128, 64, 4, 2, 8, 1}>("128x64w4b2", false),
    Make<ForwardV2Config{128, 227, 128, 64, 4, 2, 8, 1}>("128x64w4b2r", true),
    Make<ForwardV2Config{128, 163, 256, 64, 8, 1, 8, 1}>("256x64w8b1", false),
    Make<ForwardV2Config{128, 163, 128, 32, 4, 2, 8, 1}>("128x32w4b2", false),
    Make<ForwardV2Config{128, 163, 128, 64, 8, 1, 8, 1}>("128x64w8b1", false),

    Make<ForwardV2Config{256, 227, 128, 64, 8, 1, 8, 1}>("128x64w8b1", false),
    Make<ForwardV2Config{256, 227, 128, 64, 8, 1, 8, 1}>("128x64w8b1r", true),
    Make<ForwardV2Config{256, 99, 64, 32, 4, 2, 4, 2}>("64x32w4b2", false),
    Make<ForwardV2Config{256, 99, 64, 32, 4, 2, 4, 2}>("64x32w4b2r", true),
    Make<ForwardV2Config{256, 163, 128, 32, 8, 1, 8, 1}>("128x32w8b1", false),
};

}  // namespace

int main(int argc, char** argv) { return flashwok::tune::Main(argc, argv, kCandidates); }
