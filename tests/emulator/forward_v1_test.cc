// Forward V1 as compiled for the GPU, on the emulator, against the float64 oracle.
#include "cuda/kernels/forward_v1.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/forward_params.h"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

template <DType kType, int kRow, bool kPlain>
void RunRow(const cuda::ForwardParams& params, const emulator::Options& options) {
  using Traits = cuda::ForwardV1Traits<kType, cuda::kForwardV1Configs[kRow], kPlain>;
  emulator::Launch(
      static_cast<unsigned>(params.batch * params.num_heads), Traits::kThreads,
      sizeof(cuda::ForwardV1Storage<Traits>), [&] { cuda::ForwardV1<Traits>::Run(params); },
      options);
}

template <DType kType, bool kPlain>
void RunKernel(int row, const cuda::ForwardParams& params, const emulator::Options& options) {
  [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    (void)((row == kRows && (RunRow<kType, kRows, kPlain>(params, options), true)) || ...);
  }(std::make_integer_sequence<int, cuda::kForwardV1Rows>());
}

void RunV1(cuda::ForwardParams params, DType dtype, bool plain, int shared_kib,
           const emulator::Options& options) {
  if (params.batch == 0 || params.total_q == 0) return;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const int row = cuda::ForwardV1Row(std::max(params.head_dim, params.head_dim_v), shared_kib);
  const cuda::ForwardV1Config config = cuda::kForwardV1Configs[row];
  const bool varlen = static_cast<bool>(params.cu_seqlens_q);
  const std::int64_t tiles =
      cuda::ForwardV1Tiles(params.total_q, config.tile_q, varlen ? params.batch : 0);
  const std::int64_t heads = (varlen ? 1 : params.batch) * params.num_heads;
  std::vector<float> o(
      static_cast<std::size_t>(heads * tiles * config.tile_q * config.head_dim + 4), kNaN);
  params.partial_o = o.data();
  params.partial_o += (16 - reinterpret_cast<std::uintptr_t>(o.data()) % 16) % 16 / 4;
  if (dtype == DType::kBFloat16) {
    plain ? RunKernel<DType::kBFloat16, true>(row, params, options)
          : RunKernel<DType::kBFloat16, false>(row, params, options);
  } else {
    plain ? RunKernel<DType::kFloat16, true>(row, params, options)
          : RunKernel<DType::kFloat16, false>(row, params, options);
  }
}

// By the plain kernel, where it would do, and by the general one.
void CheckV1(ProblemData& data, int shared_kib = 227) {
  const flashwok::Layout layout(data.problem);
  ForwardOutput output = data.output;
  output.row_max = data.row_max;
  output.row_sum = data.row_sum;
  const cuda::ForwardParams params = cuda::MakeForwardParams(layout, output);
  for (const bool general : {false, true}) {
    const bool plain = params.plain() && params.aligned && !general;
    CheckForward(data, [&](const emulator::Options& options) {
      RunV1(params, data.problem.q.dtype, plain, shared_kib, options);
    });
  }
}

class ForwardV1Test : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardV1Test, MatchesOracle) {
  ProblemData data(GetParam());
  const flashwok::Layout layout(data.problem);
  if (!cuda::CudaObjection(layout).empty() || layout.page_size > 0) GTEST_SKIP();
  CheckV1(data);
  const std::vector<double> lse = Read(data.output.lse);
  const std::vector<double> m = Read(data.row_max);
  const std::vector<double> l = Read(data.row_sum);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (!std::isfinite(lse[i])) continue;
    EXPECT_NEAR(m[i] + std::log(l[i]), lse[i], 1e-5 + 3e-7 * std::abs(lse[i]));
  }
}

// Several KV tiles in each bucket, and more Q tiles than teams.
TEST(ForwardV1, ManyTiles) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
      ProblemData data({.name = "many_tiles",
                        .dtype = DType::kBFloat16,
                        .batch = 1,
                        .seqlen_q = 290,
                        .seqlen_k = 600,
                        .num_heads = 1,
                        .head_dim = head_dim,
                        .causal = causal,
                        .window_left = causal == Causal::kNone ? -1 : 170,
                        .backward = false});
      for (const int shared_kib : {99, 227}) CheckV1(data, shared_kib);
    }
  }
}

// Sequences side by side in one head, of more tiles than one, of one and of none.
TEST(ForwardV1, SequencesOfManyTiles) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    ProblemData data({.name = "sequences",
                      .dtype = DType::kFloat16,
                      .head_dim = head_dim,
                      .causal = Causal::kBottomRight,
                      .lengths_q = {140, 0, 33, 1, 200},
                      .lengths_k = {270, 5, 40, 0, 190},
                      .backward = false});
    for (const int shared_kib : {99, 227}) CheckV1(data, shared_kib);
  }
}

// Row i sees keys up to i: what is not finite in V reaches the rows from there on, and no other.
TEST(ForwardV1, ValuesThatAreNotFiniteReachOnlyRowsThatSeeThem) {
  for (const std::int64_t head_dim : {64, 128}) {
    ProblemData data({.name = "partly_seen",
                      .dtype = DType::kBFloat16,
                      .batch = 1,
                      .seqlen_q = 300,
                      .seqlen_k = 300,
                      .head_dim = head_dim,
                      .causal = Causal::kBottomRight,
                      .backward = false});
    const std::int64_t row = data.problem.v.strides[1];
    StoreFromFloat(data.problem.v.data, DType::kBFloat16, 100 * row + 7, NAN);
    StoreFromFloat(data.problem.v.data, DType::kBFloat16, 270 * row + head_dim + 9, INFINITY);
    data.memory().Seal();
    CheckV1(data);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV1Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
