// Forward V1 as compiled for the GPU, on the emulator, against the float64 oracle.
#include "cuda/kernels/forward_v1.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/forward_params.h"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

template <DType kType, int kHeadDim, bool kPlain>
void RunTraits(const cuda::ForwardParams& params, const emulator::Options& options) {
  using Traits = cuda::ForwardV1Traits<kType, kHeadDim, kPlain>;
  emulator::Launch(
      static_cast<unsigned>(params.batch * params.num_heads), Traits::kThreads,
      sizeof(cuda::ForwardV1Storage<Traits>), [&] { cuda::ForwardV1<Traits>::Run(params); },
      options);
}

template <DType kType, bool kPlain>
void RunBucket(const cuda::ForwardParams& params, const emulator::Options& options) {
  switch (cuda::ForwardV1ConfigFor(static_cast<int>(std::max(params.head_dim, params.head_dim_v)))
              .head_dim) {
    case 64: return RunTraits<kType, 64, kPlain>(params, options);
    case 128: return RunTraits<kType, 128, kPlain>(params, options);
    default: return RunTraits<kType, 256, kPlain>(params, options);
  }
}

void RunV1(cuda::ForwardParams params, DType dtype, bool plain, const emulator::Options& options) {
  if (params.batch == 0 || params.total_q == 0) return;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const cuda::ForwardV1Config config =
      cuda::ForwardV1ConfigFor(static_cast<int>(std::max(params.head_dim, params.head_dim_v)));
  const bool varlen = static_cast<bool>(params.cu_seqlens_q);
  const std::int64_t tiles =
      cuda::ForwardV1Tiles(params.total_q, config.tile_q, varlen ? params.batch : 0);
  const std::int64_t heads = (varlen ? 1 : params.batch) * params.num_heads;
  std::vector<float> o(
      static_cast<std::size_t>(heads * tiles * config.tile_q * config.head_dim + 4), kNaN);
  params.partial_o = o.data();
  params.partial_o += (16 - reinterpret_cast<std::uintptr_t>(o.data()) % 16) % 16 / 4;
  if (dtype == DType::kBFloat16) {
    plain ? RunBucket<DType::kBFloat16, true>(params, options)
          : RunBucket<DType::kBFloat16, false>(params, options);
  } else {
    plain ? RunBucket<DType::kFloat16, true>(params, options)
          : RunBucket<DType::kFloat16, false>(params, options);
  }
}

// By the plain kernel, where it would do, and by the general one.
void CheckV1(ProblemData& data) {
  const flashwok::Layout layout(data.problem);
  ForwardOutput output = data.output;
  output.row_max = data.row_max;
  output.row_sum = data.row_sum;
  const cuda::ForwardParams params = cuda::MakeForwardParams(layout, output);
  for (const bool general : {false, true}) {
    const bool plain = params.plain() && params.aligned && !general;
    CheckForward(data, [&](const emulator::Options& options) {
      RunV1(params, data.problem.q.dtype, plain, options);
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
      CheckV1(data);
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
    CheckV1(data);
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
