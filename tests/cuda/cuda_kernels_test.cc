// The CUDA kernels on a device: every 16-bit case against the float64 oracle, runs compared bit by
// bit, and what is refused. FLASHWOK_REPEATS, FLASHWOK_KERNEL: see cuda_kernels.h.
#include "tests/cuda/cuda_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cases.h"
#include "tests/tolerance.h"

namespace flashwok::test {
namespace {

constexpr Causal kBottomRight = Causal::kBottomRight;

// m + log l is lse, where a row sees a key.
void CheckState(const ProblemData& data) {
  const std::vector<double> row_max = Read(data.row_max);
  const std::vector<double> row_sum = Read(data.row_sum);
  const std::vector<double> lse = Read(data.output.lse);
  for (std::size_t n = 0; n < lse.size(); ++n) {
    if (!std::isfinite(lse[n])) continue;
    const double got = row_max[n] + std::log(row_sum[n]);
    ASSERT_NEAR(got, lse[n], 4e-6 * std::max(1.0, std::abs(lse[n]))) << "row " << n;
  }
}

class CudaCaseTest : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaCaseTest, MatchesOracle) {
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  DeviceProblem device(data);
  const reference::ForwardResult want = reference::Forward(data.problem);
  const reference::ForwardResult plain = reference::PlainForward(data.problem);
  int runs = 0;
  for (int num_splits : {0, 3}) {
    for (const KernelInfo& kernel : device.Kernels(num_splits)) {
      SCOPED_TRACE(kernel.name + ", num_splits " + std::to_string(num_splits));
      ASSERT_NO_THROW(device.Run(kernel));
      ++runs;
      const DType dtype = data.problem.q.dtype;
      const double scores = kernel.algorithm == Algorithm::kStandard ? ScoreFloor(GetParam()) : 0.0;
      ExpectClose("o", data.output.o, want.o, plain.o, scores + Floor(dtype));
      ExpectClose("lse", data.output.lse, want.lse, plain.lse, scores + 2e-6);
      EXPECT_EQ(data.GuardError(), "");
      if (kernel.algorithm == Algorithm::kV1) CheckState(data);
    }
  }
  if (runs == 0) GTEST_SKIP() << device.refusal();
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaCaseTest, ::testing::ValuesIn(HalfCases()),
                         [](const auto& test) { return test.param.name; });

// --- Bit by bit. -------------------------------------------------------------------------------

std::vector<Case> RepeatCases() {
  std::vector<Case> cases = {
      {.name = "d64", .seqlen_q = 777, .seqlen_k = 777, .head_dim = 64},
      {.name = "d128_causal",
       .seqlen_q = 777,
       .seqlen_k = 900,
       .num_heads_kv = 2,
       .head_dim = 128,
       .causal = kBottomRight},
      {.name = "d256_causal",
       .seqlen_q = 500,
       .seqlen_k = 500,
       .head_dim = 256,
       .causal = kBottomRight},
      {.name = "d128_varlen",
       .num_heads_kv = 1,
       .head_dim = 128,
       .causal = kBottomRight,
       .lengths_q = {300, 1, 0, 640, 129, 77},
       .lengths_k = {300, 900, 5, 640, 128, 80}},
      {.name = "d64_window",
       .seqlen_q = 900,
       .seqlen_k = 900,
       .head_dim = 64,
       .window_left = 128,
       .window_right = 0},
      {.name = "d96_seqused",
       .seqlen_q = 300,
       .seqlen_k = 700,
       .head_dim = 96,
       .seqused_k = {700, 0, 333}},
  };
  for (Case& c : cases) {
    c.dtype = DType::kBFloat16;
    c.batch = c.seqused_k.empty() ? 4 : 3;
    c.num_heads = 8;
    c.backward = false;
  }
  return cases;
}

class CudaRepeatTest : public CudaCaseTest {};

TEST_P(CudaRepeatTest, GivesTheSameBits) {
  const int repeats = Count("FLASHWOK_REPEATS", 20);
  ProblemData data(GetParam());
  SCOPED_TRACE(data.Describe());
  DeviceProblem device(data);
  for (const KernelInfo& kernel : device.Kernels()) {
    SCOPED_TRACE(kernel.name);
    const std::vector<std::byte> first = device.Bits(kernel);
    for (int n = 1; n < repeats; ++n) {
      ASSERT_TRUE(device.Bits(kernel) == first) << "launch " << n;
    }
    const PlanResult plan = Plan(device.problem, Pass::kForward, DeviceProblem::Named(kernel));
    if (plan.workspace_bytes == 0) continue;
    const DeviceMemory workspace(plan.workspace_bytes);
    Require(workspace.status());
    Execution execution;
    execution.workspace = workspace.data();
    execution.workspace_bytes = plan.workspace_bytes;
    ASSERT_TRUE(device.Bits(kernel, execution) == first) << "with a workspace given";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaRepeatTest, ::testing::ValuesIn(RepeatCases()),
                         [](const auto& test) { return test.param.name; });

Tensor Part(Tensor tensor, int axis, std::int64_t begin, std::int64_t end) {
  tensor.data =
      static_cast<std::byte*>(tensor.data) + begin * tensor.strides[axis] * ItemSize(tensor.dtype);
  tensor.shape[axis] = end - begin;
  return tensor;
}

class CudaPartsTest : public CudaTest {
 protected:
  // Calls on the parts of an axis that begin at `cuts` give the bits of the call on all of it.
  void Check(const Case& c, int axis, int lse_axis, const std::vector<std::int64_t>& cuts) {
    ProblemData data(c);
    SCOPED_TRACE(data.Describe());
    DeviceProblem device(data);
    for (const KernelInfo& kernel : device.Kernels()) {
      // cuBLAS, in standard attention, chooses its kernel by the shape.
      if (kernel.algorithm == Algorithm::kStandard) continue;
      SCOPED_TRACE(kernel.name);
      const std::vector<std::byte> whole = device.Bits(kernel);
      device.Refill();
      for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
        const auto part = [&](const Tensor& tensor, int of) {
          return Part(tensor, of, cuts[n], cuts[n + 1]);
        };
        Problem problem = device.problem;
        problem.algorithm = kernel.algorithm;
        problem.q = part(problem.q, axis);
        if (axis == 0) problem.k = part(problem.k, 0);
        if (axis == 0) problem.v = part(problem.v, 0);
        ForwardOutput output = device.Output(kernel);
        output.o = part(output.o, axis);
        for (Tensor* tensor : {&output.lse, &output.row_max, &output.row_sum}) {
          if (tensor->present()) *tensor = part(*tensor, lse_axis);
        }
        Require(Forward(problem, output, DeviceProblem::Named(kernel)));
      }
      Require(cuda::Synchronize());
      EXPECT_TRUE(device.Bits() == whole);
    }
  }
};

TEST_F(CudaPartsTest, ARowDoesNotDependOnOtherBatches) {
  Check({.name = "batches",
         .dtype = DType::kBFloat16,
         .batch = 3,
         .seqlen_q = 300,
         .seqlen_k = 300,
         .num_heads = 4,
         .num_heads_kv = 2,
         .head_dim = 64,
         .causal = kBottomRight,
         .backward = false},
        0, 0, {0, 1, 3});
}

TEST_F(CudaPartsTest, ARowDoesNotDependOnOtherRows) {
  Check({.name = "rows",
         .dtype = DType::kBFloat16,
         .seqlen_q = 400,
         .seqlen_k = 700,
         .num_heads = 4,
         .head_dim = 128,
         .backward = false},
        1, 2, {0, 1, 75, 200, 400});
}

// --- What is refused. --------------------------------------------------------------------------

class CudaRefusalTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    device_ = std::make_unique<DeviceProblem>(data_);
  }

  void Expect(StatusCode code, const std::string& message, const Execution& execution = {}) {
    const Status status = Forward(device_->problem, device_->output, execution);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    Require(cuda::Synchronize());
  }

  ProblemData data_{
      {.name = "refused", .dtype = DType::kBFloat16, .head_dim = 64, .backward = false}};
  std::unique_ptr<DeviceProblem> device_;
};

TEST_F(CudaRefusalTest, Float32) {
  for (Tensor* tensor : {&device_->problem.q, &device_->problem.k, &device_->problem.v}) {
    tensor->dtype = DType::kFloat32;
  }
  Expect(StatusCode::kUnsupported, "dtype float32");
}

TEST_F(CudaRefusalTest, MixedDevices) {
  Problem& problem = device_->problem;
  const Problem on_device = problem;
  problem.k = data_.problem.k;
  Expect(StatusCode::kInvalidArgument, "k: is on cpu");
  problem = on_device;
  device_->output.lse = data_.output.lse;
  Expect(StatusCode::kInvalidArgument, "lse: is on cpu");
}

TEST_F(CudaRefusalTest, NoSuchDevice) {
  Problem& problem = device_->problem;
  for (int index : {cuda::DeviceCount(), -1}) {
    for (Tensor* tensor :
         {&problem.q, &problem.k, &problem.v, &device_->output.o, &device_->output.lse}) {
      tensor->device.index = index;
    }
    Expect(StatusCode::kUnsupported, "cuda:" + std::to_string(index));
  }
}

TEST_F(CudaRefusalTest, HeadDim) {
  for (Tensor* tensor : {&device_->problem.q, &device_->problem.k}) tensor->shape[3] = 60;
  Expect(StatusCode::kUnsupported, "head_dim: is 60");
}

TEST_F(CudaRefusalTest, TilesAndObserver) {
  Execution execution;
  execution.tile_q = 64;
  Expect(StatusCode::kUnsupported, "tile_q: is given", execution);
}

// A workspace that is too small is refused before anything is written.
TEST_F(CudaRefusalTest, SmallWorkspace) {
  device_->problem.causal = kBottomRight;
  for (const KernelInfo& kernel : device_->Kernels()) {
    device_->problem.algorithm = kernel.algorithm;
    Execution execution = DeviceProblem::Named(kernel);
    const PlanResult plan = Plan(device_->problem, Pass::kForward, execution);
    if (plan.workspace_bytes < 2) continue;
    const DeviceMemory workspace(plan.workspace_bytes);
    execution.workspace = workspace.data();
    execution.workspace_bytes = plan.workspace_bytes - 1;
    Expect(StatusCode::kInvalidArgument, "workspace_bytes", execution);
  }
}

}  // namespace
}  // namespace flashwok::test
