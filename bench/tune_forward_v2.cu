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

// `section`: heads whose tiles alternate; 0: as the library has it.
template <ForwardV2Config kConfig>
Candidate Make(const char* name, std::uint32_t section = 0) {
  using Traits = ForwardV2Traits<DType::kBFloat16, kConfig, true>;
  const auto prepare = [name, section](const Cell& cell, const Buffers& buffers) -> std::function<void()> {
    int limit = 0;
    Require(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            "attribute");
    if (sizeof(ForwardV2Storage<Traits>) > static_cast<std::size_t>(limit)) return {};
    const Problem problem = buffers.ProblemOf(cell);
    ForwardOutput output;
    output.o = buffers.View(Buffers::kO, cell);
    const ForwardParams params = MakeForwardParams(Layout(problem), output);
    Schedule schedule = MakeQTileSchedule(params, Traits::kTileQ);
    if (section > 0) schedule.section = std::min(section, schedule.heads);
    return [params, schedule, name] {
      Require(LaunchForwardV2<Traits>(params, schedule, nullptr), name);
    };
  };
  return {name, kConfig.head_dim, prepare};
}

// rows x keys, stages, warps (h: two of them share rows), blocks an SM; p: a pace of K and V
// together, d: of drifting warps; +: copies spread over the products; h1, h16: the line above with
// sections of so many heads.
const std::vector<Candidate> kCandidates = {
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3}>("128x64s4w4b3"),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3}>("h1", 1),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3}>("h16", 16),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3, Pace::kItem, true}>("128x64s4w4b3+"),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3, Pace::kPair}>("128x64s4w4b3p"),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3, Pace::kPair, true}>("128x64s4w4b3p+"),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 3, Pace::kDrift}>("128x64s4w4b3d"),
    Make<ForwardV2Config{64, 128, 64, 5, 4, 1, 3, Pace::kDrift}>("128x64s5w4b3d"),
    Make<ForwardV2Config{64, 128, 128, 2, 4, 1, 2}>("128x128s2w4b2"),
    Make<ForwardV2Config{64, 128, 128, 4, 4, 1, 2, Pace::kPair}>("128x128s4w4b2p"),
    Make<ForwardV2Config{64, 128, 128, 4, 4, 1, 2, Pace::kDrift}>("128x128s4w4b2d"),
    Make<ForwardV2Config{64, 64, 64, 4, 2, 1, 6, Pace::kPair}>("64x64s4w2b6p"),
    Make<ForwardV2Config{64, 128, 64, 4, 4, 1, 2, Pace::kPair}>("128x64s4w4b2p"),

    Make<ForwardV2Config{128, 128, 64, 3, 4, 1, 2}>("128x64s3w4b2"),
    Make<ForwardV2Config{128, 128, 64, 3, 4, 1, 2}>("h1", 1),
    Make<ForwardV2Config{128, 128, 64, 3, 4, 1, 2}>("h16", 16),
    Make<ForwardV2Config{128, 128, 64, 3, 4, 1, 2, Pace::kItem, true}>("128x64s3w4b2+"),
    Make<ForwardV2Config{128, 128, 64, 4, 4, 1, 2}>("128x64s4w4b2"),
    Make<ForwardV2Config{128, 128, 64, 4, 4, 1, 2, Pace::kPair}>("128x64s4w4b2p"),
    Make<ForwardV2Config{128, 128, 64, 4, 4, 1, 2, Pace::kPair, true}>("128x64s4w4b2p+"),
    Make<ForwardV2Config{128, 128, 64, 4, 4, 1, 2, Pace::kDrift}>("128x64s4w4b2d"),
    Make<ForwardV2Config{128, 128, 64, 5, 4, 1, 2, Pace::kDrift}>("128x64s5w4b2d"),
    Make<ForwardV2Config{128, 64, 64, 4, 2, 1, 4, Pace::kItem}>("64x64s4w2b4"),
    Make<ForwardV2Config{128, 256, 64, 4, 8, 1, 1, Pace::kDrift}>("256x64s4w8b1d"),
    Make<ForwardV2Config{128, 128, 32, 4, 4, 1, 2, Pace::kPair}>("128x32s4w4b2p"),

    Make<ForwardV2Config{256, 128, 64, 3, 8, 1, 1}>("128x64s3w8b1"),
    Make<ForwardV2Config{256, 128, 64, 3, 8, 1, 1}>("h1", 1),
    Make<ForwardV2Config{256, 128, 64, 3, 8, 1, 1}>("h8", 8),
    Make<ForwardV2Config{256, 128, 64, 3, 8, 1, 1, Pace::kItem, true}>("128x64s3w8b1+"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 1, 1, Pace::kPair}>("128x64s4w8b1p"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 1, 1, Pace::kDrift}>("128x64s4w8b1d"),
    Make<ForwardV2Config{256, 64, 64, 2, 4, 1, 2}>("64x64s2w4b2"),
    Make<ForwardV2Config{256, 64, 64, 2, 4, 2, 2}>("64x64s2w4hb2"),
    Make<ForwardV2Config{256, 128, 64, 2, 8, 2, 1}>("128x64s2w8hb1"),
    Make<ForwardV2Config{256, 128, 64, 3, 8, 2, 1}>("128x64s3w8hb1"),
    Make<ForwardV2Config{256, 128, 64, 3, 8, 2, 1, Pace::kItem, true}>("128x64s3w8hb1+"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 2, 1}>("128x64s4w8hb1"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 2, 1, Pace::kPair}>("128x64s4w8hb1p"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 2, 1, Pace::kPair, true}>("128x64s4w8hb1p+"),
    Make<ForwardV2Config{256, 128, 64, 4, 8, 2, 1, Pace::kDrift}>("128x64s4w8hb1d"),
    Make<ForwardV2Config{256, 128, 128, 2, 8, 2, 1}>("128x128s2w8hb1"),
};

}  // namespace

int main(int argc, char** argv) { return flashwok::tune::Main(argc, argv, kCandidates); }
