// MergeStates on a device: halves of the keys against the float64 oracle of the whole, layouts
// against the CPU's merge, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>

#include "reference/plain.h"
#include "reference/reference.h"
#include "tests/cuda/cuda_kernels.h"
#include "tests/tolerance.h"

namespace flashwok::test {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};

// The CPU's and the device's exp, log and division differ by a few units in the last place of a
// weight of at most 1, and the device contracts a * b + c.
constexpr float kWeightError = 1e-6f;

// float32 with a twin on the device.
class Twin {
 public:
  Twin(std::vector<float> host, Tensor view)
      : host_(std::move(host)), view_(view), device_(host_.size() * sizeof(float)) {
    Require(device_.status());
    Upload();
  }
  static Twin Contiguous(std::initializer_list<std::int64_t> shape) {
    const Tensor view = Tensor::Contiguous(nullptr, DType::kFloat32, shape);
    return {std::vector<float>(static_cast<std::size_t>(view.num_elements())), view};
  }

  void Upload() { Require(cuda::CopyToDevice(device_.data(), host_.data(), Bytes())); }
  void Download() { Require(cuda::CopyToHost(host_.data(), device_.data(), Bytes())); }
  Tensor OnHost() {
    view_.data = host_.data();
    view_.device = {};
    return view_;
  }
  Tensor OnDevice() {
    view_.data = device_.data();
    view_.device = kDevice;
    return view_;
  }
  std::vector<float>& host() { return host_; }

 private:
  std::size_t Bytes() const { return host_.size() * sizeof(float); }
  std::vector<float> host_;
  Tensor view_;
  DeviceMemory device_;
};

class CudaMergeTest : public CudaTest {};

TEST_F(CudaMergeTest, HalvesOfTheKeysGiveTheWhole) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    ProblemData data({.name = "halves",
                      .dtype = dtype,
                      .seqlen_q = 190,
                      .seqlen_k = 300,
                      .num_heads = 4,
                      .num_heads_kv = 2,
                      .head_dim = 128,
                      .backward = false});
    SCOPED_TRACE(data.Describe());
    DeviceProblem device(data);
    const Tensor& o = device.output.o;
    Twin parts[2][2] = {{Twin::Contiguous({o.shape[0], o.shape[1], o.shape[2], o.shape[3]}),
                         Twin::Contiguous({o.shape[0], o.shape[2], o.shape[1]})},
                        {Twin::Contiguous({o.shape[0], o.shape[1], o.shape[2], o.shape[3]}),
                         Twin::Contiguous({o.shape[0], o.shape[2], o.shape[1]})}};
    device.Refill();
    for (int n = 0; n < 2; ++n) {
      Problem half = device.problem;
      for (Tensor* keys : {&half.k, &half.v}) {
        keys->data = static_cast<std::byte*>(keys->data) + n * 130 * keys->strides[1] * 2;
        keys->shape[1] = n == 0 ? 130 : 170;
      }
      Require(Forward(half, {parts[n][0].OnDevice(), parts[n][1].OnDevice(), {}, {}}));
    }
    Require(MergeStates(parts[0][0].OnDevice(), parts[0][1].OnDevice(), parts[1][0].OnDevice(),
                        parts[1][1].OnDevice(), device.output.o, device.output.lse));
    Require(cuda::Synchronize());
    (void)device.Bits();
    const reference::ForwardResult want = reference::Forward(data.problem);
    const reference::ForwardResult plain = reference::PlainForward(data.problem);
    ExpectClose("o", data.output.o, want.o, plain.o, Floor(dtype));
    ExpectClose("lse", data.output.lse, want.lse, plain.lse, 2e-6);
    EXPECT_EQ(data.GuardError(), "");
  }
}

struct LayoutCase {
  std::array<std::int64_t, 4> shape;  // batch, seqlen_q, num_heads, head_dim_v
  std::int64_t pad;                   // elements between rows
  bool in_place;
};

// Rows of random numbers, with parts that are empty and far apart among them.
Twin RandomRows(const LayoutCase& c, std::mt19937_64& random) {
  const std::int64_t row = c.shape[3] + c.pad;
  Tensor view = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 1, 1, 1});
  std::copy(c.shape.begin(), c.shape.end(), view.shape.begin());
  view.strides = {c.shape[1] * c.shape[2] * row, row, c.shape[1] * row, 1};  // heads first
  std::vector<float> values(static_cast<std::size_t>(c.shape[0] * view.strides[0]));
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return {std::move(values), view};
}

Twin RandomLse(const LayoutCase& c, std::mt19937_64& random) {
  const Tensor view =
      Tensor::Contiguous(nullptr, DType::kFloat32, {c.shape[0], c.shape[2], c.shape[1]});
  std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (float& value : values) {
    const std::uint64_t kind = random() % 16;
    value = kind == 0 ? -INFINITY : kind == 1 ? 200.0f : normal(random);
  }
  return {std::move(values), view};
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, float error) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (got[n] == want[n]) continue;
    ASSERT_LE(std::abs(got[n] - want[n]), error) << "element " << n << ": " << got[n];
  }
}

TEST_F(CudaMergeTest, LayoutsGiveWhatTheCpuGives) {
  std::mt19937_64 random(Seed());
  for (const LayoutCase& c : {LayoutCase{{2, 33, 4, 128}, 0, false},
                              {{2, 33, 4, 128}, 8, true},
                              {{3, 17, 5, 37}, 0, false},
                              {{3, 17, 5, 64}, 3, true},
                              {{1, 9, 2, 512}, 0, true},
                              {{70000, 1, 2, 8}, 0, true},
                              {{70000, 2, 1, 3}, 0, false},
                              {{2, 5, 3, 0}, 0, false}}) {
    SCOPED_TRACE(std::to_string(c.shape[0]) + " batches, head_dim_v " + std::to_string(c.shape[3]) +
                 (c.in_place ? ", in place" : ""));
    Twin o_a = RandomRows(c, random), o_b = RandomRows(c, random), o_new = RandomRows(c, random);
    Twin lse_a = RandomLse(c, random), lse_b = RandomLse(c, random), lse_new = RandomLse(c, random);
    Twin& o = c.in_place ? o_a : o_new;
    Twin& lse = c.in_place ? lse_a : lse_new;
    Require(MergeStates(o_a.OnDevice(), lse_a.OnDevice(), o_b.OnDevice(), lse_b.OnDevice(),
                        o.OnDevice(), lse.OnDevice()));
    Require(MergeStates(o_a.OnHost(), lse_a.OnHost(), o_b.OnHost(), lse_b.OnHost(), o.OnHost(),
                        lse.OnHost()));
    const std::vector<float> want_o = o.host(), want_lse = lse.host();
    Require(cuda::Synchronize());
    o.Download();
    lse.Download();
    ExpectNear(o.host(), want_o, 16 * kWeightError);  // |O| stays below 8
    ExpectNear(lse.host(), want_lse, 200 * kWeightError);
  }
}

TEST_F(CudaMergeTest, Refusals) {
  const LayoutCase c = {{1, 3, 2, 8}, 0, false};
  std::mt19937_64 random(1);
  Twin o = RandomRows(c, random), lse = RandomLse(c, random);
  const auto message = [&](int n, const Tensor& other) {
    Tensor t[] = {o.OnDevice(),   lse.OnDevice(), o.OnDevice(),
                  lse.OnDevice(), o.OnDevice(),   lse.OnDevice()};
    t[n] = other;
    return MergeStates(t[0], t[1], t[2], t[3], t[4], t[5]).message();
  };
  EXPECT_TRUE(message(2, o.OnHost()).starts_with("o_b: is on cpu")) << message(2, o.OnHost());
  EXPECT_TRUE(message(5, lse.OnHost()).starts_with("lse: is on cpu")) << message(5, lse.OnHost());
  for (const int index : {cuda::DeviceCount(), -1}) {
    Tensor rows = o.OnDevice(), scalars = lse.OnDevice();
    rows.device.index = scalars.device.index = index;
    const Status status = MergeStates(rows, scalars, rows, scalars, rows, scalars);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("cuda:" + std::to_string(index)), std::string::npos);
  }
  Require(cuda::Synchronize());
}

}  // namespace
}  // namespace flashwok::test
