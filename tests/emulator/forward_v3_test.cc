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

template <DType kType, bool kSoftcap, int kRow = 0>
void RunRow(int row, const cuda::ForwardV3Params& params, const emulator::Options& options) {
  if constexpr (kRow < cuda::kForwardV3Rows) {
    if (row == kRow) return RunKernel<kType, kRow, kSoftcap>(params, options);
    RunRow<kType, kSoftcap, kRow + 1>(row, params, options);
  }
}

// A call as the library makes it.
void RunV3(int row, const Problem& problem, const ForwardOutput& output,
           const emulator::Options& options) {
  const flashwok::Layout layout(problem);
  cuda::ForwardV3Params params;
  const bool softcap = problem.softcap > 0.0;
  const cuda::ForwardV3Config& plain = cuda::kForwardV3Configs[row];
  const cuda::ForwardV3Config config = softcap ? cuda::WithSoftcap(plain) : plain;
  std::vector<std::byte> scratch(cuda::ForwardV3Scratch(layout, config), std::byte{0xFF});
  ASSERT_TRUE(
      cuda::MakeForwardV3Params(layout, config, output, scratch.data(), Encode, &params).ok());
  if (params.schedule.total() == 0) return;
  if (problem.q.dtype == DType::kBFloat16) {
    softcap ? RunRow<DType::kBFloat16, true>(row, params, options)
            : RunRow<DType::kBFloat16, false>(row, params, options);
  } else {
    softcap ? RunRow<DType::kFloat16, true>(row, params, options)
            : RunRow<DType::kFloat16, false>(row, params, options);
  }
  // A graph replays the launch: what the counter holds must not be taken for its own.
  if (params.counter.word != nullptr) {
    EXPECT_EQ(*params.counter.word, 0u);
  }
}

class ForwardV3Test : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardV3Test, MatchesOracle) {
  ProblemData data(GetParam());
  if (!cuda::ForwardV3Objection(flashwok::Layout(data.problem)).empty()) GTEST_SKIP();
  // Every row of the table that can hold the problem and is as narrow as the chosen one.
  const flashwok::Layout layout(data.problem);
  const cuda::ForwardV3Config& chosen = cuda::kForwardV3Configs[cuda::ForwardV3RowOf(layout)];
  for (int row = 0; row < cuda::kForwardV3Rows; ++row) {
    const cuda::ForwardV3Config& config = cuda::kForwardV3Configs[row];
    if (config.head_dim != chosen.head_dim || config.head_dim_v != chosen.head_dim_v) continue;
    SCOPED_TRACE("row " + std::to_string(row));
    CheckForward(data, [&](const emulator::Options& options) {
      RunV3(row, data.problem, data.output, options);
    });
  }
}

// What a query sees decides, not how many keys there are, nor how many queries.
TEST(ForwardV3, NarrowWindowsTakeTheRowOfFewKeys) {
  const auto row = [](std::int64_t seqlen, int window_left, std::int64_t seqlen_q) {
    const ProblemData data({.name = "row",
                            .dtype = DType::kBFloat16,
                            .batch = 1,
                            .seqlen_q = seqlen_q,
                            .seqlen_k = seqlen,
                            .head_dim = 64,
                            .causal = Causal::kBottomRight,
                            .window_left = window_left,
                            .backward = false});
    return cuda::ForwardV3RowOf(flashwok::Layout(data.problem));
  };
  EXPECT_EQ(row(9000, 128, 1), row(300, -1, 1));
  EXPECT_EQ(row(9000, 128, 700), row(300, -1, 1));
  EXPECT_NE(row(9000, 4000, 1), row(300, -1, 1));
  EXPECT_NE(row(9000, -1, 1), row(9000, 4000, 1));
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV3Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
