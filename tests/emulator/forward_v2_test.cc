// Forward V2 and its combine kernel as compiled for the GPU, on the emulator, against the float64
// oracle: every case in both dtypes, with the keys whole and in pieces.
#include "cuda/kernels/forward_v2.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/forward_params.h"
#include "cuda/kernels/combine.cuh"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

template <DType kType, int kHeadDim, bool kPlain>
void RunTraits(const cuda::ForwardParams& params, const emulator::Options& options) {
  using Traits = cuda::ForwardV2Traits<kType, kHeadDim, kPlain>;
  const cuda::Schedule schedule = cuda::MakeQTileSchedule(params, Traits::kTileQ);
  emulator::Launch(schedule.total() * static_cast<unsigned>(params.num_splits), Traits::kThreads,
                   sizeof(cuda::ForwardV2Storage<Traits>),
                   [&] { cuda::ForwardV2<Traits>::Run(params, schedule); }, options);
}

template <DType kType, bool kPlain>
void RunBucket(const cuda::ForwardParams& params, const emulator::Options& options) {
  switch (cuda::ForwardV2ConfigFor(
              static_cast<int>(std::max(params.head_dim, params.head_dim_v))).head_dim) {
    case 32: return RunTraits<kType, 32, kPlain>(params, options);
    case 64: return RunTraits<kType, 64, kPlain>(params, options);
    case 96: return RunTraits<kType, 96, kPlain>(params, options);
    case 128: return RunTraits<kType, 128, kPlain>(params, options);
    case 192: return RunTraits<kType, 192, kPlain>(params, options);
    default: return RunTraits<kType, 256, kPlain>(params, options);
  }
}

void RunV2(cuda::ForwardParams params, DType dtype, bool plain, const emulator::Options& options) {
  if (params.batch == 0 || params.total_q == 0) return;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t rows = params.num_splits * cuda::PartialRows(params);
  std::vector<float> partial_o(static_cast<std::size_t>(rows * params.head_dim_v), kNaN);
  std::vector<float> partial_lse(static_cast<std::size_t>(rows), kNaN);
  params.partial_o = partial_o.data();
  params.partial_lse = partial_lse.data();
  if (dtype == DType::kBFloat16) {
    plain ? RunBucket<DType::kBFloat16, true>(params, options)
          : RunBucket<DType::kBFloat16, false>(params, options);
  } else {
    plain ? RunBucket<DType::kFloat16, true>(params, options)
          : RunBucket<DType::kFloat16, false>(params, options);
  }
  if (params.num_splits == 1) return;
  const auto blocks = static_cast<unsigned>((cuda::PartialRows(params) + 3) / 4);
  emulator::Launch(blocks, cuda::Combine::kWarps * 32, 0, [&] { cuda::Combine::Run(params); },
                   options);
}

class ForwardV2Test : public ::testing::TestWithParam<Case> {
 protected:
  // `general`: the kernel for all problems also where the plain one would do.
  static void Check(ProblemData& data, int num_splits, bool general) {
    const flashwok::Layout layout(data.problem);
    cuda::ForwardParams params = cuda::MakeForwardParams(layout, data.output);
    params.num_splits = num_splits;
    params.chunk = cuda::ForwardV2ConfigFor(256).tile_kv;
    const bool plain =
        !general && params.plain() && params.aligned && params.page_size % params.chunk == 0;
    if (num_splits > 1) params.chunk *= CeilDiv(params.total_k + 1, num_splits * params.chunk);
    CheckForward(data, [&](const emulator::Options& options) {
      RunV2(params, data.problem.q.dtype, plain, options);
    });
  }
  static bool Refused(const ProblemData& data) {
    return !cuda::CudaObjection(flashwok::Layout(data.problem)).empty();
  }
};

TEST_P(ForwardV2Test, MatchesOracle) {
  ProblemData data(GetParam());
  if (Refused(data)) GTEST_SKIP();
  Check(data, 1, false);
}

TEST_P(ForwardV2Test, InPiecesAndByTheGeneralKernel) {
  ProblemData data(GetParam());
  if (Refused(data)) GTEST_SKIP();
  Check(data, 3, false);
  Check(data, 1, true);
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV2Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
