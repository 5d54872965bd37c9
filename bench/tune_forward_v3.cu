// Times configurations of forward V3: for choosing the rows of cuda/config/forward_v3.h. See
// tune_forward.h.
//
//   tune_forward_v3 [SEQLEN ...]
#include "cuda/driver.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/kernels/forward_v3.cuh"
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

// `counted`: work tiles are handed out by a counter, under a causal mask alone.
template <ForwardV3Config kConfig>
Candidate Make(const char* name, bool counted = false) {
  const auto prepare = [=](const Cell& cell, const Buffers& buffers) -> std::function<void()> {
    if (counted && !cell.causal) return {};
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
    params.counter = counted ? reinterpret_cast<unsigned*>(buffers.scratch) : nullptr;
    int blocks = 0;
    Require(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "attribute");
    blocks = std::min(blocks, static_cast<int>(params.schedule.total()));
    return [=] {
      if (counted) Require(cudaMemsetAsync(params.counter, 0, kForwardV3Cleared), "cudaMemset");
      using Traits = ForwardV3Traits<DType::kBFloat16, kConfig, false>;
      Require(StartForwardV3<Traits>(params, blocks, nullptr), name);
    };
  };
  return {name, kConfig.head_dim, prepare};
}

template <ForwardV3Config kConfig>
void Add(const char* name, std::vector<Candidate>& candidates) {
  candidates.push_back(Make<kConfig>(name));
  candidates.push_back(Make<kConfig>("counted", true));
}

// consumers x keys, s: stages of K and V, q: of Q, pp: ping-pong; counted: the line above.
std::vector<Candidate> Candidates() {
  std::vector<Candidate> all;
  Add<ForwardV3Config{64, 64, 3, 128, 3, 2, false}>("3x128 s3", all);
  Add<ForwardV3Config{64, 64, 3, 128, 3, 2, true}>("3x128 s3 pp", all);
  Add<ForwardV3Config{64, 64, 4, 64, 4, 2, false}>("4x64 s4", all);
  Add<ForwardV3Config{64, 64, 4, 64, 4, 2, true}>("4x64 s4 pp", all);
  Add<ForwardV3Config{64, 64, 2, 128, 3, 2, true}>("2x128 s3 pp", all);
  Add<ForwardV3Config{128, 128, 2, 128, 2, 2, true}>("2x128 pp", all);
  Add<ForwardV3Config{128, 128, 2, 128, 3, 1, true}>("2x128 s3 q1 pp", all);
  Add<ForwardV3Config{128, 128, 2, 128, 2, 2, false}>("2x128", all);
  Add<ForwardV3Config{128, 128, 3, 80, 2, 2, false}>("3x80", all);
  Add<ForwardV3Config{128, 128, 2, 160, 2, 1, true}>("2x160 q1 pp", all);
  Add<ForwardV3Config{128, 128, 2, 176, 2, 1, true}>("2x176 q1 pp", all);
  Add<ForwardV3Config{256, 256, 2, 80, 2, 1, true}>("2x80 q1 pp", all);
  Add<ForwardV3Config{256, 256, 2, 64, 2, 1, true}>("2x64 q1 pp", all);
  return all;
}

}  // namespace

int main(int argc, char** argv) { return flashwok::tune::Main(argc, argv, Candidates()); }
