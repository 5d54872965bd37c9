// Forward V3 as compiled for Hopper, on the emulator, against the float64 oracle.
#include "cuda/kernels/forward_v3.cuh"

#include <gtest/gtest.h>

#include "cuda/forward_v3_setup.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/emulated_kernels.h"

namespace flashwok::test {
namespace {

Status Encode(const cuda::TensorMapRequest& request, cuda::ptx::TensorMap* map) {
  emulator::EncodeTiled(map, 2, request.base, request.sizes, request.strides, request.box,
                        request.swizzle);
  return {};
}

template <DType kType, int kRow, bool kSoftcap>
void RunKernel(const cuda::ForwardV3Params& params, const emulator::Options& options) {
  constexpr cuda::ForwardV3Config kPlain = cuda::kForwardV3Configs[kRow];
  constexpr cuda::ForwardV3Config kConfig = kSoftcap ? cuda::WithSoftcap(kPlain) : kPlain;
  using Traits = cuda::ForwardV3Traits<kType, kConfig, kSoftcap>;
  const std::uint32_t tiles = params.schedule.total();
  emulator::Launch(dim3(tiles < 3 ? tiles : 3), Traits::kThreads,
                   sizeof(cuda::ForwardV3Storage<Traits>),
                   [&] { cuda::ForwardV3<Traits>(params); }, options);
}

template <DType kType, bool kSoftcap>
void RunRow(int row, const cuda::ForwardV3Params& params, const emulator::Options& options) {
  switch (row) {
    case 0: return RunKernel<kType, 0, kSoftcap>(params, options);
    case 1: return RunKernel<kType, 1, kSoftcap>(params, options);
    case 2: return RunKernel<kType, 2, kSoftcap>(params, options);
    case 3: return RunKernel<kType, 3, kSoftcap>(params, options);
    case 4: return RunKernel<kType, 4, kSoftcap>(params, options);
    default: return RunKernel<kType, 5, kSoftcap>(params, options);
  }
}

// A call as the library makes it.
void RunV3(const Problem& problem, const ForwardOutput& output, const emulator::Options& options) {
  const flashwok::Layout layout(problem);
  cuda::ForwardV3Params params;
  const cuda::ForwardV3Config config = cuda::ForwardV3ConfigOf(layout);
  std::vector<std::byte> scratch(cuda::ForwardV3Scratch(layout, config));  // zeros
  ASSERT_TRUE(
      cuda::MakeForwardV3Params(layout, config, output, scratch.data(), Encode, &params).ok());
  if (params.schedule.total() == 0) return;
  const int row = cuda::ForwardV3Row(layout.head_dim, layout.head_dim_v);
  const bool softcap = problem.softcap > 0.0;
  if (problem.q.dtype == DType::kBFloat16) {
    softcap ? RunRow<DType::kBFloat16, true>(row, params, options)
            : RunRow<DType::kBFloat16, false>(row, params, options);
  } else {
    softcap ? RunRow<DType::kFloat16, true>(row, params, options)
            : RunRow<DType::kFloat16, false>(row, params, options);
  }
}

class ForwardV3Test : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardV3Test, MatchesOracle) {
  ProblemData data(GetParam());
  if (!cuda::ForwardV3Objection(flashwok::Layout(data.problem)).empty()) GTEST_SKIP();
  CheckForward(data, [&](const emulator::Options& options) {
    RunV3(data.problem, data.output, options);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV3Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
