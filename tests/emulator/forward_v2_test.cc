// Forward V2 and its combine kernel as compiled for the GPU, on the emulator, against the float64
// oracle: every case in both dtypes, with the keys whole and in pieces.
#include "cuda/kernels/forward_v2.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/forward_params.h"
#include "cuda/kernels/combine.cuh"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

// `blocks`: at most so many take turns at the Q tiles.
template <DType kType, cuda::ForwardV2Config kConfig, bool kPlain>
void RunConfig(const cuda::ForwardParams& params, unsigned blocks,
               const emulator::Options& options) {
  using Traits = cuda::ForwardV2Traits<kType, kConfig, kPlain>;
  const cuda::Schedule schedule = cuda::MakeQTileSchedule(params, Traits::kTileQ);
  emulator::Launch(
      std::min(blocks, schedule.total() * static_cast<unsigned>(params.num_splits)),
      Traits::kThreads, sizeof(cuda::ForwardV2Storage<Traits>),
      [&] { cuda::ForwardV2<Traits>::Run(params, schedule); }, options);
}

template <DType kType, int kHeadDim, bool kPlain>
void RunTraits(const cuda::ForwardParams& params, const emulator::Options& options) {
  const unsigned blocks = options.seed == 0 ? 3 : UINT32_MAX;  // the bits must be the same
  constexpr int kRow = cuda::ForwardV2Row(kHeadDim, 227);
  RunConfig<kType, cuda::kForwardV2Configs[kRow], kPlain>(params, blocks, options);
}

template <DType kType, bool kPlain>
void RunBucket(const cuda::ForwardParams& params, const emulator::Options& options) {
  const int row = cuda::ForwardV2Row(std::max(params.head_dim, params.head_dim_v), 227);
  switch (cuda::kForwardV2Configs[row].head_dim) {
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
  const std::int64_t rows = params.num_splits * params.rows();
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
  const auto blocks = static_cast<unsigned>((params.rows() + 3) / 4);
  emulator::Launch(
      blocks, cuda::Combine::kWarps * 32, 0, [&] { cuda::Combine::Run(params); }, options);
}

class ForwardV2Test : public ::testing::TestWithParam<Case> {
 protected:
  // `general`: the kernel for all problems also where the plain one would do.
  static void Check(ProblemData& data, int num_splits, bool general) {
    const flashwok::Layout layout(data.problem);
    cuda::ForwardParams params = cuda::MakeForwardParams(layout, data.output);
    params.num_splits = num_splits;
    params.chunk = 64;  // keys of a tile
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

// Of a case with inputs of the test's own, by both kernels and in pieces.
void CheckChanged(ProblemData& data) {
  const reference::ForwardResult want = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  const flashwok::Layout layout(data.problem);
  cuda::ForwardParams params = cuda::MakeForwardParams(layout, data.output);
  params.chunk = 128;
  for (const auto& [num_splits, fast] :
       {std::pair{1, true}, std::pair{1, false}, std::pair{5, true}}) {
    params.num_splits = num_splits;
    RunV2(params, data.problem.q.dtype, fast, {});
    ExpectClose("o", data.output.o, want.o, plain.o, 1e-5);
    ExpectClose("lse", data.output.lse, want.lse, plain.lse, 2e-6);
  }
}

template <class Make>
void Fill(const Tensor& tensor, Make make) {
  ForEachElement(tensor, [&](std::int64_t offset) {
    StoreFromFloat(tensor.data, tensor.dtype, offset, make(offset));
  });
}

// Row i sees keys up to i: a NaN in V at key 100 and an infinity at 200 belong to the rows from
// there on, and to no other.
TEST(ForwardV2, ValuesThatAreNotFiniteReachOnlyRowsThatSeeThem) {
  for (const int window : {-1, 70}) {
    ProblemData data({.name = "partly_seen",
                      .dtype = DType::kBFloat16,
                      .batch = 1,
                      .seqlen_q = 300,
                      .seqlen_k = 300,
                      .head_dim = 64,
                      .causal = Causal::kBottomRight,
                      .window_left = window,
                      .backward = false});
    const std::int64_t row = data.problem.v.strides[1];
    StoreFromFloat(data.problem.v.data, DType::kBFloat16, 100 * row + 7, NAN);
    StoreFromFloat(data.problem.v.data, DType::kBFloat16, 200 * row + 64 + 9, INFINITY);
    CheckChanged(data);
  }
}

// Products far below zero, where the maximum by integers says nothing.
TEST(ForwardV2, ScoresAllFarBelowZero) {
  ProblemData data({.name = "below_zero",
                    .dtype = DType::kFloat16,
                    .batch = 1,
                    .seqlen_q = 40,
                    .seqlen_k = 260,
                    .head_dim = 32,
                    .backward = false});
  Fill(data.problem.q, [](std::int64_t at) { return -8.0f - static_cast<float>(at % 5); });
  Fill(data.problem.k, [](std::int64_t at) { return 1.0f + static_cast<float>(at % 7) / 8; });
  CheckChanged(data);
}

TEST(ForwardV2, PagesOfWholeTiles) {
  for (const int page_size : {64, 128, 48}) {
    ProblemData data({.name = "pages",
                      .dtype = DType::kBFloat16,
                      .seqlen_q = 70,
                      .num_heads = 4,
                      .num_heads_kv = 2,
                      .head_dim = 64,
                      .causal = Causal::kBottomRight,
                      .seqused_k = {333, 90},
                      .page_size = page_size,
                      .backward = false});
    if (page_size % 64 == 0) {
      CheckChanged(data);
    } else {
      const flashwok::Layout layout(data.problem);
      RunV2(cuda::MakeForwardParams(layout, data.output), DType::kBFloat16, false, {});
      ExpectClose("o", data.output.o, reference::Forward(data.problem).o,
                  reference::PlainForward(data.problem).o, 1e-5);
    }
  }
}

TEST(ForwardV2, ManySequences) {
  Case c = {.name = "many",
            .dtype = DType::kBFloat16,
            .num_heads = 1,
            .causal = Causal::kBottomRight,
            .backward = false};
  for (int b = 0; b < 75; ++b) {
    c.lengths_q.push_back(b == 40 ? 300 : b * 7 % 5);
    c.lengths_k.push_back(b == 40 ? 310 : b * 5 % 9);
  }
  ProblemData data(c);
  CheckChanged(data);
}

// A row's bits do not depend on the rows beside it, though a warp decides for 16 whether a maximum
// must be raised.
TEST(ForwardV2, RowsAreIndependent) {
  ProblemData data({.name = "independent",
                    .dtype = DType::kBFloat16,
                    .batch = 1,
                    .seqlen_q = 64,
                    .seqlen_k = 400,
                    .num_heads = 1,
                    .head_dim = 64,
                    .magnitude = 3.0,
                    .backward = false});
  const flashwok::Layout layout(data.problem);
  const cuda::ForwardParams params = cuda::MakeForwardParams(layout, data.output);
  RunV2(params, DType::kBFloat16, true, {});
  const std::vector<double> before = Read(data.output.o);
  Fill(data.problem.q, [&](std::int64_t at) {
    const float old = LoadAsFloat(data.problem.q.data, DType::kBFloat16, at);
    return at / 64 % 2 == 0 ? old : 7.0f * old;
  });
  RunV2(params, DType::kBFloat16, true, {});
  const std::vector<double> after = Read(data.output.o);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i / 64 % 2 == 0) {
      EXPECT_EQ(before[i], after[i]) << i;
    }
  }
}

template <int kRow>
void CheckRow() {
  constexpr cuda::ForwardV2Config kConfig = cuda::kForwardV2Configs[kRow];
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    for (const int window : {-1, 90}) {
      ProblemData data({.name = "row",
                        .dtype = DType::kBFloat16,
                        .batch = 1,
                        .seqlen_q = 300,
                        .seqlen_k = 420,
                        .num_heads = 2,
                        .head_dim = kConfig.head_dim,
                        .causal = causal,
                        .window_left = window,
                        .magnitude = 3.0,
                        .backward = false});
      const flashwok::Layout layout(data.problem);
      const cuda::ForwardParams params = cuda::MakeForwardParams(layout, data.output);
      for (const unsigned blocks : {1u, 2u, 100u}) {
        if (kSanitized && blocks != 2) continue;  // three tiles a block
        CheckForward(data, [&](const emulator::Options& options) {
          RunConfig<DType::kBFloat16, kConfig, true>(params, blocks, options);
        });
      }
    }
  }
}

// Those of smaller devices too, and all ways to share out the Q tiles.
TEST(ForwardV2, EveryRowOfTheTable) {
  []<int... kRows>(std::integer_sequence<int, kRows...>) {
    (CheckRow<kRows>(), ...);
  }(std::make_integer_sequence<int, cuda::kForwardV2Rows>());
}

// More queries than keys under a causal mask, and sequences without keys, between others: their rows
// see nothing.
TEST(ForwardV2, TilesThatSeeNoKeyBetweenOthers) {
  ProblemData rows({.name = "few_keys",
                    .dtype = DType::kBFloat16,
                    .seqlen_q = 500,
                    .seqlen_k = 70,
                    .causal = Causal::kBottomRight,
                    .backward = false});
  CheckChanged(rows);
  ProblemData sequences({.name = "no_keys",
                         .dtype = DType::kBFloat16,
                         .lengths_q = {130, 200, 0, 140},
                         .lengths_k = {100, 0, 50, 90},
                         .backward = false});
  CheckChanged(sequences);
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardV2Test, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
