// The rows of V1's and V2's tables on made-up devices that differ in shared memory: what Plan says,
// and which instance is launched.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/instances/forward_v1.h"
#include "cuda/instances/forward_v2.h"
#include "cuda/kernels.h"
#include "tests/problem_data.h"

namespace flashwok::cuda {
namespace {

int shared_kib = 0;
int launched = -1;  // the row
int launched_multiprocessors = 0;

}  // namespace

int SharedKib(int) { return shared_kib; }
int Multiprocessors(int device) { return 100 + device; }
Status FromCuda(cudaError_t, const char*) { return {}; }

template <int kRow>
cudaError_t LaunchForwardV1(DType, const ForwardParams&, cudaStream_t) {
  launched = kRow;
  return cudaSuccess;
}
template <int kRow>
cudaError_t LaunchForwardV2(DType, const ForwardParams&, int multiprocessors, cudaStream_t) {
  launched = kRow;
  launched_multiprocessors = multiprocessors;
  return cudaSuccess;
}
cudaError_t LaunchCombine(const ForwardParams&, cudaStream_t) { return cudaSuccess; }

// Uses them here, so that they are there for the host code.
template <int... kRows>
auto V1s(std::integer_sequence<int, kRows...>) {
  return std::array{&LaunchForwardV1<kRows>...};
}
template <int... kRows>
auto V2s(std::integer_sequence<int, kRows...>) {
  return std::array{&LaunchForwardV2<kRows>...};
}
const auto all_v1 = V1s(std::make_integer_sequence<int, kForwardV1Rows>());
const auto all_v2 = V2s(std::make_integer_sequence<int, kForwardV2Rows>());

}  // namespace flashwok::cuda

namespace flashwok::test {
namespace {

using namespace flashwok::cuda;

ProblemData Data(std::int64_t head_dim) {
  return ProblemData({.name = "rows",
                      .dtype = DType::kBFloat16,
                      .batch = 1,
                      .seqlen_q = 40,
                      .seqlen_k = 1500,
                      .num_heads = 1,
                      .head_dim = head_dim,
                      .backward = false});
}

template <class Config, class Plan, class Forward>
std::set<int> Check(const Config* configs, Plan plan, Forward forward) {
  std::set<int> rows;
  for (const int kib : {99, 163, 227}) {
    shared_kib = kib;
    for (const std::int64_t head_dim : {8, 32, 40, 64, 72, 96, 128, 136, 192, 256}) {
      ProblemData data = Data(head_dim);
      data.problem.q.device.index = 3;
      const Launch launch = plan(flashwok::Layout(data.problem));
      launched = -1;
      EXPECT_TRUE(forward(data.problem, data.output, launch).ok());
      EXPECT_GE(launched, 0);
      const Config& config = configs[launched];
      EXPECT_GE(config.head_dim, head_dim);
      EXPECT_LE(config.shared_kib, kib) << head_dim;
      EXPECT_EQ(launch.tile_q, config.tile_q);
      EXPECT_EQ(launch.tile_kv, config.tile_kv);
      EXPECT_EQ(launch.chunk % config.tile_kv, 0);
      rows.insert(launched);
    }
  }
  return rows;
}

TEST(CudaRows, EachDeviceGetsWhatFitsItsSharedMemory) {
  EXPECT_EQ(Check(kForwardV1Configs, PlanForwardV1, ForwardV1).size(),
            static_cast<std::size_t>(kForwardV1Rows));
  EXPECT_EQ(Check(kForwardV2Configs, PlanForwardV2, ForwardV2).size(),
            static_cast<std::size_t>(kForwardV2Rows));
  EXPECT_EQ(launched_multiprocessors, 103);
}

TEST(CudaRows, MoreSharedMemoryNeverTakesASmallerTile) {
  for (const std::int64_t head_dim : {32, 64, 96, 128, 192, 256}) {
    int keys[2] = {};
    for (const int kib : {99, 163, 227}) {
      const int v1 = kForwardV1Configs[ForwardV1Row(head_dim, kib)].tile_kv;
      const int v2 = kForwardV2Configs[ForwardV2Row(head_dim, kib)].tile_kv;
      EXPECT_GE(v1, keys[0]);
      EXPECT_GE(v2, keys[1]);
      keys[0] = v1, keys[1] = v2;
    }
  }
}

}  // namespace
}  // namespace flashwok::test
