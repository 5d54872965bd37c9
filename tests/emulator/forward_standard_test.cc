// Standard attention on the emulator: its softmax and repair kernels as compiled for the GPU, with
// plain loops in place of the library's products.
#include "cuda/kernels/forward_standard.cuh"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/forward_params.h"
#include "cuda/standard_products.h"
#include "tests/emulator/emulated_kernels.h"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

constexpr int kGeneral = -1;  // the kernel for all problems

Status MultiplyPlainly(const cuda::Product& p) {
  for (std::int64_t n = 0; n < p.count * p.m * p.n; ++n) {
    const std::int64_t batch = n / (p.m * p.n), row = n / p.n % p.m, col = n % p.n;
    const std::int64_t b = batch * p.b_batch + (p.transpose_b ? col * p.b_row : col);
    const std::int64_t a = batch * p.a_batch + row * p.a_row;
    float sum = 0.0f;
    for (std::int64_t k = 0; k < p.k; ++k) {
      sum += LoadAsFloat(p.a, p.dtype, a + k) *
             LoadAsFloat(p.b, p.dtype, b + (p.transpose_b ? k : k * p.b_row));
    }
    StoreFromFloat(p.c, p.c_dtype, batch * p.c_batch + row * p.c_row + col, sum);
  }
  return {};
}

template <DType kType>
void RunSoftmax(const cuda::ForwardStandardParams& p, int threads, int chunks,
                const emulator::Options& options) {
  const auto run = [&](auto kernel) {
    emulator::Launch(
        static_cast<unsigned>(p.rows()), threads, sizeof(cuda::ForwardStandardStorage),
        [&] {
          kernel(*reinterpret_cast<cuda::ForwardStandardStorage*>(cuda::ptx::DynamicShared()));
        },
        options);
  };
  using Storage = cuda::ForwardStandardStorage;
  switch (chunks) {
    case 1: return run([&](Storage& s) { cuda::StandardPlainSoftmax<kType, 1>::Run(p, s); });
    case 2: return run([&](Storage& s) { cuda::StandardPlainSoftmax<kType, 2>::Run(p, s); });
    case 4: return run([&](Storage& s) { cuda::StandardPlainSoftmax<kType, 4>::Run(p, s); });
    case 8: return run([&](Storage& s) { cuda::StandardPlainSoftmax<kType, 8>::Run(p, s); });
    default: return run([&](Storage& s) { cuda::StandardSoftmax<kType>(p).Run(s); });
  }
}

// `threads`: of the plain kernel's blocks, fewer than the launch would take; 0: as it does.
template <DType kType>
void RunStandard(const flashwok::Layout& layout, const ForwardOutput& output, int threads,
                 const emulator::Options& options) {
  if (layout.batch == 0 || layout.total_q == 0) return;
  cuda::ForwardStandardParams p;
  p.base = cuda::MakeForwardParams(layout, output);
  p.score_stride = std::max<std::int64_t>((layout.total_k + 7) / 8 * 8, 8);
  constexpr std::uint16_t kNaN = 0x7FFF;
  std::vector<std::uint16_t> scores(static_cast<std::size_t>(p.rows() * p.score_stride + 8), kNaN);
  std::vector<float> lse(static_cast<std::size_t>(p.rows()),
                         std::numeric_limits<float>::quiet_NaN());
  p.scores = scores.data() + (16 - reinterpret_cast<std::uintptr_t>(scores.data()) % 16) % 16 / 2;
  p.lse = lse.data();
  cuda::StandardRowShape shape = cuda::StandardRowShape::Make(p);
  if (threads == kGeneral) {
    shape = {};
  } else if (threads > 0 && shape.chunks > 0) {
    shape.threads = threads;
    while (std::int64_t{8} * shape.threads * shape.chunks < p.score_stride) shape.chunks *= 2;
  }
  const cuda::StandardProducts products(layout, p);
  if (layout.total_k > 0) (void)products.Scores(MultiplyPlainly);
  RunSoftmax<kType>(p, shape.threads, shape.chunks, options);
  (void)products.Values(MultiplyPlainly);
  emulator::Launch(
      static_cast<unsigned>((p.rows() + 7) / 8), 256, 0, [&] { cuda::RepairStandardRow<kType>(p); },
      options);
}

void RunHalf(const ProblemData& data, int threads, const emulator::Options& options) {
  const flashwok::Layout layout(data.problem);
  return data.problem.q.dtype == DType::kBFloat16
             ? RunStandard<DType::kBFloat16>(layout, data.output, threads, options)
             : RunStandard<DType::kFloat16>(layout, data.output, threads, options);
}

class ForwardStandardTest : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardStandardTest, MatchesOracle) {
  ProblemData data(GetParam());
  const Problem& problem = data.problem;
  if (!cuda::CudaObjection(flashwok::Layout(problem)).empty()) GTEST_SKIP();
  if (problem.cu_seqlens_q.present() || problem.page_table.present()) GTEST_SKIP();
  for (const int threads : {0, kGeneral}) {
    SCOPED_TRACE("threads " + std::to_string(threads));
    CheckForward(
        data, [&](const emulator::Options& options) { RunHalf(data, threads, options); },
        ScoreFloor(data.test_case()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardStandardTest, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

// One thread with all the chunks it can hold.
TEST(ForwardStandard, LongRows) {
  for (const std::int64_t seqlen_k : {249, 500, 1001, 2000}) {
    for (const int window : {-1, 300}) {
      ProblemData data({.name = "long",
                        .dtype = DType::kFloat16,
                        .batch = 1,
                        .seqlen_q = 9,
                        .seqlen_k = seqlen_k,
                        .head_dim = 16,
                        .causal = Causal::kBottomRight,
                        .window_left = window,
                        .backward = false});
      CheckForward(
          data, [&](const emulator::Options& options) { RunHalf(data, 32, options); },
          ScoreFloor(data.test_case()));
    }
  }
}

// Row i sees keys up to i: what is not finite in V reaches the rows from there on, and no other.
TEST(ForwardStandard, ValuesThatAreNotFiniteReachOnlyRowsThatSeeThem) {
  ProblemData data({.name = "partly_seen",
                    .dtype = DType::kBFloat16,
                    .batch = 1,
                    .seqlen_q = 80,
                    .seqlen_k = 80,
                    .head_dim = 64,
                    .causal = Causal::kBottomRight,
                    .backward = false});
  const std::int64_t row = data.problem.v.strides[1];
  StoreFromFloat(data.problem.v.data, DType::kBFloat16, 30 * row + 7, NAN);
  StoreFromFloat(data.problem.v.data, DType::kBFloat16, 50 * row + 64 + 9, INFINITY);
  const reference::ForwardResult want = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  for (const int threads : {0, kGeneral}) {
    RunHalf(data, threads, {});
    ExpectClose("o", data.output.o, want.o, plain.o, ScoreFloor(data.test_case()));
  }
}

// The sizes of the batches in which the two products of a case are done.
std::vector<std::int64_t> Batches(const Case& c) {
  ProblemData data(c);
  const flashwok::Layout layout(data.problem);
  cuda::ForwardStandardParams p;
  p.base = cuda::MakeForwardParams(layout, data.output);
  p.score_stride = 64;
  std::vector<std::int64_t> counts;
  const auto note = [&](const cuda::Product& product) {
    counts.push_back(product.count);
    return Status();
  };
  (void)cuda::StandardProducts(layout, p).Scores(note);
  (void)cuda::StandardProducts(layout, p).Values(note);
  return counts;
}

TEST(ForwardStandard, ProductsAreFew) {
  using Counts = std::vector<std::int64_t>;
  Case c = {.name = "few", .dtype = DType::kBFloat16, .batch = 2, .num_heads = 3, .head_dim = 8};
  c.layout = Layout::kBhsd;
  EXPECT_EQ(Batches(c), (Counts{6, 6}));
  c.layout = Layout::kBshd;
  EXPECT_EQ(Batches(c), (Counts{3, 3, 3, 3}));
  c.batch = 5;
  EXPECT_EQ(Batches(c), (Counts{5, 5, 5, 5, 5, 5}));
  c.batch = 1;
  EXPECT_EQ(Batches(c), (Counts{3, 3}));
  c.num_heads = 8;
  c.num_heads_kv = 1;
  EXPECT_EQ(Batches(c), (Counts{8, 8}));
  c.num_heads_kv = 4;
  EXPECT_EQ(Batches(c), (Counts{4, 4, 4, 4}));
}

}  // namespace
}  // namespace flashwok::test
