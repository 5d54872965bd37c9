// The CUDA kernels on problems too large for the float64 oracle: drawn ones, more heads than a grid
// axis takes, and strides beyond 2^31. The oracle is the CPU's float32 V2, right to 1e-6.
// FLASHWOK_RANDOM: how many problems are drawn.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/cases.h"
#include "tests/cuda/cuda_kernels.h"

namespace flashwok::test {
namespace {

// A contiguous float32 copy on the host.
class FloatCopy {
 public:
  explicit FloatCopy(const Tensor& tensor) : view_(tensor) {
    const std::vector<double> values = Read(tensor);
    values_.assign(values.begin(), values.end());
    view_.dtype = DType::kFloat32;
    std::int64_t stride = 1;
    for (int axis = view_.rank - 1; axis >= 0; --axis) {
      view_.strides[axis] = stride;
      stride *= view_.shape[axis];
    }
  }

  Tensor view() {
    view_.data = values_.data();
    return view_;
  }
  std::vector<float>& values() { return values_; }

 private:
  Tensor view_;
  std::vector<float> values_;
};

struct Wanted {
  std::vector<float> o, lse;
  std::vector<float> weight;  // what the same P gives of |V|: bounds how far rounding P moves O
};

Wanted FromCpu(const ProblemData& data) {
  FloatCopy q(data.problem.q), k(data.problem.k), v(data.problem.v);
  FloatCopy o(data.output.o), lse(data.output.lse);
  Problem problem = data.problem;
  problem.q = q.view();
  problem.k = k.view();
  problem.v = v.view();
  problem.algorithm = Algorithm::kV2;
  Wanted wanted;
  Require(Forward(problem, {o.view(), lse.view(), {}, {}}));
  wanted.o = o.values();
  wanted.lse = lse.values();
  for (float& value : v.values()) value = std::abs(value);
  Require(Forward(problem, {o.view(), {}, {}, {}}));
  wanted.weight = o.values();
  return wanted;
}

// The first value that is too far off, or an empty text.
template <class Bound>
std::string FirstWrong(const Tensor& tensor, const std::vector<float>& want, const Bound& bound) {
  const std::vector<double> got = Read(tensor);
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double error = std::abs(got[n] - want[n]);
    const bool same = got[n] == want[n] || (std::isnan(got[n]) && std::isnan(want[n]));
    if (same || error <= bound(n)) continue;
    return "element " + std::to_string(n) + ": " + std::to_string(got[n]) + ", must be " +
           std::to_string(want[n]) + " to " + std::to_string(bound(n));
  }
  return "";
}

// O and P are rounded once each, and standard attention's scores, of which 8 standard deviations
// are taken for the largest; the rest is float32.
void ExpectResults(const ProblemData& data, const Wanted& want, Algorithm algorithm) {
  const Problem& problem = data.problem;
  const double unit = problem.q.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const double deviation = std::sqrt(static_cast<double>(problem.q.shape[problem.q.rank - 1]));
  const double score = 8.0 * std::abs(problem.softmax_scale.value_or(1.0 / deviation)) * deviation;
  const double score_error = algorithm == Algorithm::kStandard ? unit * score : 0.0;
  const double cap = problem.softcap;
  EXPECT_EQ(FirstWrong(data.output.o, want.o,
                       [&](std::size_t n) {
                         const double weight = want.weight[n];
                         return unit * (std::abs(want.o[n]) + weight) + 2.0 * score_error * weight +
                                (2e-5 + 1e-6 * cap) * std::max(1.0, weight);
                       }),
            "")
      << "o";
  EXPECT_EQ(FirstWrong(data.output.lse, want.lse,
                       [&](std::size_t n) {
                         return 1e-5 * std::max(1.0, std::abs(double{want.lse[n]})) + 1e-6 * cap +
                                score_error;
                       }),
            "")
      << "lse";
  EXPECT_EQ(data.GuardError(), "");
}

void CheckAgainstCpu(ProblemData& data) {
  SCOPED_TRACE(data.Describe());
  DeviceProblem device(data);
  const std::vector<KernelInfo> kernels = device.Kernels();
  if (kernels.empty()) GTEST_SKIP() << device.refusal();
  const Wanted want = FromCpu(data);
  for (const KernelInfo& kernel : kernels) {
    SCOPED_TRACE(kernel.name);
    ASSERT_NO_THROW(device.Run(kernel));
    ExpectResults(data, want, kernel.algorithm);
  }
}

// --- Drawn problems. ---------------------------------------------------------------------------

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::int64_t From(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool Chance(int percent) { return From(1, 100) <= percent; }

  Case Make(std::uint64_t seed) {
    Case c = {.name = "drawn_" + std::to_string(seed)};
    c.dtype = Chance(50) ? DType::kBFloat16 : DType::kFloat16;
    c.backward = false;
    c.num_heads_kv = From(1, 3);
    c.num_heads = c.num_heads_kv * From(1, 4);
    c.head_dim = 8 * From(1, 32);
    if (Chance(30)) c.head_dim_v = 8 * From(1, 32);
    Lengths(&c);
    Scores(&c);
    return c;
  }

 private:
  void Lengths(Case* c) {
    c->batch = From(1, 3);
    c->seqlen_q = From(1, 1100);
    c->seqlen_k = Chance(50) ? c->seqlen_q : From(1, 1100);
    if (Chance(35)) {
      for (std::int64_t b = From(1, 5); b > 0; --b) {
        c->lengths_q.push_back(static_cast<int>(From(0, 1100)));
        c->lengths_k.push_back(Chance(50) ? c->lengths_q.back() : static_cast<int>(From(0, 1100)));
      }
      c->batch = static_cast<std::int64_t>(c->lengths_q.size());
    }
    const bool paged = c->lengths_q.empty() && Chance(10);
    if (paged) c->page_size = static_cast<int>(From(1, 130));
    for (std::int64_t b = 0; (paged || Chance(20) || b > 0) && b < c->batch; ++b) {
      const std::int64_t keys = c->lengths_k.empty() ? c->seqlen_k : c->lengths_k[b];
      c->seqused_k.push_back(static_cast<int>(From(0, keys)));
    }
    if (Chance(40)) c->layout = Chance(50) ? Layout::kBhsd : Layout::kSliced;
  }

  void Scores(Case* c) {
    c->causal = static_cast<Causal>(From(0, 2));
    if (Chance(40)) c->window_left = From(-1, 300);
    if (Chance(40)) c->window_right = From(-1, 100);
    if (Chance(20)) c->softcap = 20.0;
    if (Chance(15)) c->softmax_scale = 0.02 * static_cast<double>(From(-3, 10));
    if (Chance(10)) c->bias = Chance(50) ? Axes::kScores : Axes::kKeys;
    if (Chance(10)) c->mask = Chance(50) ? Axes::kScores : Axes::kKeys;
    if (Chance(10)) c->alibi = Alibi::kHeads;
    if (Chance(10)) c->dropout_p = 0.2;
    c->poison = c->lengths_q.empty() && c->seqused_k.empty() && Chance(50);
  }

  std::mt19937_64 random_;
};

class CudaDrawnTest : public CudaTest, public ::testing::WithParamInterface<int> {};

TEST_P(CudaDrawnTest, MatchesTheCpu) {
  const std::uint64_t seed = Seed() + static_cast<std::uint64_t>(GetParam());
  ProblemData data(Draw(seed).Make(seed), seed);
  CheckAgainstCpu(data);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaDrawnTest, ::testing::Range(0, Count("FLASHWOK_RANDOM", 40)));

// --- Large in one way. -------------------------------------------------------------------------

class CudaManyTest : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaManyTest, MatchesTheCpu) {
  ProblemData data(GetParam());
  CheckAgainstCpu(data);
}

std::vector<Case> ManyCases() {
  std::vector<Case> cases = {
      {.name = "heads_of_batches", .batch = 1100, .seqlen_q = 3, .seqlen_k = 5, .num_heads = 64},
      {.name = "batches", .batch = 66000, .seqlen_q = 2, .seqlen_k = 3, .num_heads = 1},
      {.name = "heads",
       .batch = 1,
       .seqlen_q = 2,
       .seqlen_k = 3,
       .num_heads = 66000,
       .num_heads_kv = 33000},
      {.name = "sequences",
       .num_heads = 1,
       .lengths_q = std::vector<int>(66000, 1),
       .lengths_k = std::vector<int>(66000, 2)},
      {.name = "keys", .batch = 1, .seqlen_q = 3, .seqlen_k = 100000, .num_heads = 1},
      {.name = "queries", .batch = 1, .seqlen_q = 100000, .seqlen_k = 3, .num_heads = 1},
  };
  for (Case& c : cases) {
    c.dtype = DType::kBFloat16;
    c.head_dim = 16;
    c.causal = Causal::kBottomRight;
    c.backward = false;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaManyTest, ::testing::ValuesIn(ManyCases()),
                         [](const auto& test) { return test.param.name; });

// A tensor's batches, 2^31 elements and a little apart on the device.
class FarApart {
 public:
  explicit FarApart(const Tensor& host)
      : batch_bytes_(static_cast<std::size_t>(host.strides[0] * ItemSize(host.dtype))),
        memory_(Bytes(host)) {
    view = host;
    view.strides[0] = kStride;
    view.data = memory_.data();
    view.device = {DeviceType::kCuda, 0};
  }

  const Status& status() const { return memory_.status(); }

  template <class Copy>
  void ForEachBatch(const Tensor& host, const Copy& copy) const {
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      copy(static_cast<std::byte*>(host.data) + b * static_cast<std::int64_t>(batch_bytes_),
           memory_.data() + b * kStride * ItemSize(host.dtype), batch_bytes_);
    }
  }

  Tensor view;

 private:
  static constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;

  static std::size_t Bytes(const Tensor& host) {
    const std::int64_t elements = (host.shape[0] - 1) * kStride + host.strides[0];
    return static_cast<std::size_t>(elements * ItemSize(host.dtype));
  }

  const std::size_t batch_bytes_;
  DeviceMemory memory_;
};

TEST_F(CudaTest, StridesBeyond31Bits) {
  ProblemData data({.name = "far_apart",
                    .dtype = DType::kBFloat16,
                    .seqlen_q = 150,
                    .seqlen_k = 200,
                    .head_dim = 64,
                    .causal = Causal::kBottomRight,
                    .backward = false});
  SCOPED_TRACE(data.Describe());
  DeviceProblem device(data);
  const Wanted want = FromCpu(data);
  const Problem host = data.problem;
  const FarApart q(host.q), k(host.k), v(host.v), o(data.output.o);
  for (const FarApart* tensor : {&q, &k, &v, &o}) {
    if (!tensor->status().ok()) GTEST_SKIP() << tensor->status().message();
  }
  const auto upload = [](std::byte* from, std::byte* to, std::size_t bytes) {
    Require(cuda::CopyToDevice(to, from, bytes));
  };
  q.ForEachBatch(host.q, upload);
  k.ForEachBatch(host.k, upload);
  v.ForEachBatch(host.v, upload);
  device.problem.q = q.view;
  device.problem.k = k.view;
  device.problem.v = v.view;
  device.output.o = o.view;
  for (const KernelInfo& kernel : device.Kernels()) {
    SCOPED_TRACE(kernel.name);
    data.ResetOutputs();
    o.ForEachBatch(data.output.o, upload);
    ASSERT_NO_THROW(device.Run(kernel));
    o.ForEachBatch(data.output.o, [](std::byte* to, std::byte* from, std::size_t bytes) {
      Require(cuda::CopyToHost(to, from, bytes));
    });
    ExpectResults(data, want, kernel.algorithm);
  }
}

}  // namespace
}  // namespace flashwok::test
