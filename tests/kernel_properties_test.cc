// What holds without an oracle: bits that may not depend on threads, splits or neighbours, and
// equalities between ways to say the same thing.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "flashwok/attention.h"

namespace flashwok::test {
namespace {

// One float32 problem with its output.
struct Example {
  Example(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t heads,
          std::int64_t head_dim, unsigned seed)
      : q(batch * seqlen_q * heads * head_dim),
        k(batch * seqlen_k * heads * head_dim),
        v(k.size()),
        o(q.size()),
        lse(batch * heads * seqlen_q) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* values : {&q, &k, &v}) {
      for (float& value : *values) value = normal(random);
    }
    const auto view = [&](std::vector<float>& values, std::int64_t seqlen) {
      return Tensor::Contiguous(values.data(), DType::kFloat32, {batch, seqlen, heads, head_dim});
    };
    problem.q = view(q, seqlen_q);
    problem.k = view(k, seqlen_k);
    problem.v = view(v, seqlen_k);
    output.o = view(o, seqlen_q);
    output.lse = Tensor::Contiguous(lse.data(), DType::kFloat32, {batch, heads, seqlen_q});
  }

  void Go(int threads = 1) {
    Execution execution;
    execution.num_threads = threads;
    execution.kernel = kernel;
    if (narrow) {
      Narrow(q, &problem.q, 0);
      Narrow(k, &problem.k, 1);
      Narrow(v, &problem.v, 2);
    }
    const Status status = Forward(problem, output, execution);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // From now on a kernel's own run, on bfloat16 inputs where it takes nothing wider.
  void Use(const KernelInfo& info) {
    kernel = info.name;
    narrow = info.dtypes == "bfloat16";
  }

  std::vector<float> q, k, v, o, lse;
  Problem problem;
  ForwardOutput output;
  std::string kernel;
  bool narrow = false;

 private:
  void Narrow(const std::vector<float>& values, Tensor* tensor, int slot) {
    narrow_[slot].resize(values.size());
    tensor->data = narrow_[slot].data();
    tensor->dtype = DType::kBFloat16;
    for (std::size_t n = 0; n < values.size(); ++n) {
      StoreFromFloat(tensor->data, tensor->dtype, static_cast<std::int64_t>(n), values[n]);
    }
  }
  std::vector<std::uint16_t> narrow_[3];
};

class Properties : public ::testing::TestWithParam<KernelInfo> {
 protected:
  const unsigned seed_ = std::random_device{}();
};

TEST_P(Properties, ThreadsChangeNoBit) {
  SCOPED_TRACE(seed_);
  Example one(1, 5, 5000, 1, 40, seed_);
  Example many(1, 5, 5000, 1, 40, seed_);
  one.Use(GetParam());
  many.Use(GetParam());
  one.Go(1);
  many.Go(7);
  EXPECT_EQ(one.o, many.o);
  EXPECT_EQ(one.lse, many.lse);
}

TEST_P(Properties, ARowDoesNotDependOnItsNeighbours) {
  SCOPED_TRACE(seed_);
  Example whole(1, 230, 230, 2, 24, seed_);
  whole.Use(GetParam());
  whole.problem.causal = Causal::kTopLeft;
  whole.Go();
  const std::vector<float> before = whole.o;
  const std::size_t row = 2 * 24;
  std::fill(whole.q.begin() + 100 * row, whole.q.end(), 3.0f);
  std::fill(whole.v.begin() + 100 * row, whole.v.end(), std::numeric_limits<float>::quiet_NaN());
  whole.Go();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 100 * row, whole.o.begin()));
}

TEST_P(Properties, CausalIsAWindowOfZeroToTheRight) {
  SCOPED_TRACE(seed_);
  Example causal(1, 70, 130, 2, 32, seed_);
  Example window(1, 70, 130, 2, 32, seed_);
  causal.Use(GetParam());
  window.Use(GetParam());
  causal.problem.causal = Causal::kBottomRight;
  window.problem.window_right = 0;
  causal.Go();
  window.Go();
  EXPECT_EQ(causal.o, window.o);
}

TEST_P(Properties, HalvesMergeToTheWhole) {
  SCOPED_TRACE(seed_);
  if (GetParam().dtypes == "bfloat16") GTEST_SKIP() << "its results are not exact to 1e-6";
  Example whole(1, 33, 200, 2, 32, seed_);
  whole.problem.algorithm = GetParam().algorithm;
  whole.Go();
  std::vector<float> o[2], lse[2];
  Tensor o_view[2], lse_view[2];
  for (int half = 0; half < 2; ++half) {
    o[half].resize(whole.o.size());
    lse[half].resize(whole.lse.size());
    o_view[half] = whole.output.o;
    lse_view[half] = whole.output.lse;
    o_view[half].data = o[half].data();
    lse_view[half].data = lse[half].data();
    Problem problem = whole.problem;
    for (Tensor* keys : {&problem.k, &problem.v}) {
      keys->data = static_cast<float*>(keys->data) + half * 90 * keys->strides[1];
      keys->shape[1] = half == 0 ? 90 : 110;
    }
    ForwardOutput output;
    output.o = o_view[half];
    output.lse = lse_view[half];
    ASSERT_TRUE(Forward(problem, output).ok());
  }
  ASSERT_TRUE(
      MergeStates(o_view[0], lse_view[0], o_view[1], lse_view[1], o_view[0], lse_view[0]).ok());
  for (std::size_t n = 0; n < whole.o.size(); ++n) ASSERT_NEAR(o[0][n], whole.o[n], 1e-6);
  for (std::size_t n = 0; n < whole.lse.size(); ++n) ASSERT_NEAR(lse[0][n], whole.lse[n], 2e-6);
}

TEST(Limits, StandardIsRefusedWithItsFigure) {
  Problem problem;
  problem.q = problem.k = problem.v =
      Tensor::Contiguous(nullptr, DType::kFloat32, {1, 65536, 1, 64});
  problem.algorithm = Algorithm::kStandard;
  const PlanResult plan = Plan(problem, Pass::kForward);
  EXPECT_EQ(plan.status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(plan.status.message().find("32.0 GiB"), std::string::npos) << plan.status.message();
  for (Algorithm algorithm : {Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
    problem.algorithm = algorithm;
    const PlanResult flash = Plan(problem, Pass::kForward);
    EXPECT_TRUE(flash.status.ok()) << flash.status.message();
    EXPECT_LT(flash.workspace_bytes, std::size_t{64} << 20);
  }
}

TEST(Limits, FiguresHaveAFittingUnit) {
  Problem problem;
  problem.q = problem.k = problem.v = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 512, 1, 64});
  problem.algorithm = Algorithm::kStandard;
  Execution execution;
  execution.num_threads = 1;
  for (const auto& [limit, text] :
       {std::pair{std::size_t{0}, "0 B"}, std::pair{std::size_t{1000}, "1000 B"},
        std::pair{std::size_t{3} << 9, "1.50 KiB"}, std::pair{std::size_t{1} << 20, "1 MiB"}}) {
    execution.workspace_limit = limit;
    const std::string message = Plan(problem, Pass::kForward, execution).status.message();
    EXPECT_TRUE(message.ends_with(std::string("above workspace_limit, ") + text)) << message;
    EXPECT_NE(message.find(" MiB of scratch memory"), std::string::npos) << message;
  }
}

// A worktop each for the workers that have a tile, none for those that cannot.
TEST(Limits, SpareThreadsTakeNoScratch) {
  Problem problem;
  problem.q = problem.k = problem.v = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 300, 2, 64});
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (Algorithm algorithm :
         {Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
      SCOPED_TRACE(std::string(Name(pass)) + " " + Name(algorithm));
      problem.algorithm = algorithm;
      Execution execution;
      execution.num_threads = 4096;
      const PlanResult many = Plan(problem, pass, execution);
      EXPECT_GT(many.num_threads, 1);
      EXPECT_LE(many.num_threads, 10);  // two heads of 5 tiles of 64 rows at most
      execution.num_threads = many.num_threads;
      EXPECT_EQ(Plan(problem, pass, execution).workspace_bytes, many.workspace_bytes);
      execution.num_threads = 1;
      EXPECT_EQ(Plan(problem, pass, execution).num_threads, 1);
      EXPECT_LT(Plan(problem, pass, execution).workspace_bytes, many.workspace_bytes);
    }
  }
  problem.q = problem.k = problem.v = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 0, 2, 64});
  EXPECT_EQ(Plan(problem, Pass::kForward).num_threads, 1);
}

TEST(Limits, AKernelIsOfItsAlgorithm) {
  Problem problem;
  problem.q = problem.k = problem.v = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 8, 1, 64});
  Execution execution;
  execution.kernel = "cpu_forward_v2";
  EXPECT_EQ(Plan(problem, Pass::kForward, execution).kernel, execution.kernel);
  problem.algorithm = Algorithm::kV3;
  EXPECT_EQ(Plan(problem, Pass::kForward, execution).status.message(),
            "kernel: cpu_forward_v2 is of algorithm v2, but v3 was asked for");
  EXPECT_EQ(Plan(problem, Pass::kBackward, execution).kernel, "cpu_backward_v3");
  execution.kernel = "cpu_forward_v9";
  EXPECT_EQ(Plan(problem, Pass::kForward, execution).status.message(),
            "kernel: 'cpu_forward_v9' is not in the registry");
}

std::vector<KernelInfo> ForwardKernels() {
  std::vector<KernelInfo> kernels = Kernels();
  std::erase_if(kernels,
                [](const KernelInfo& k) { return k.pass != Pass::kForward || !k.available; });
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Properties, ::testing::ValuesIn(ForwardKernels()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace flashwok::test
