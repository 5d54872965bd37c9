// A build of head_dim 128 and bfloat16 alone (CMake compiles this program and the host code so):
// what Plan is told of the other instances, and that none of them is asked of the linker.
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <utility>

#include "cuda/check.h"
#include "cuda/config/built.h"
#include "cuda/device.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/instances/forward_v1.h"
#include "cuda/instances/forward_v2.h"
#include "cuda/instances/forward_v3.h"
#include "cuda/kernels.h"
#include "tests/problem_data.h"

namespace flashwok::cuda {

int SharedKib(int) { return 227; }
int Multiprocessors(int) { return 132; }
Status FromCuda(cudaError_t, const char*) { return {}; }

// Of head_dim 128: the only ones that there are.
template <int kRow>
cudaError_t LaunchForwardV1(DType, const ForwardParams&, cudaStream_t) {
  static_assert(kForwardV1Configs[kRow].head_dim == 128);
  return cudaSuccess;
}
template <int kRow>
cudaError_t LaunchForwardV2(DType, const ForwardParams&, int, cudaStream_t) {
  static_assert(kForwardV2Configs[kRow].head_dim == 128);
  return cudaSuccess;
}
template <int kRow>
cudaError_t LaunchForwardV3(DType, const ForwardV3Params&, int, cudaStream_t) {
  static_assert(kForwardV3Configs[kRow].head_dim == 128);
  return cudaSuccess;
}
cudaError_t LaunchCombine(const ForwardParams&, cudaStream_t) { return cudaSuccess; }

}  // namespace flashwok::cuda

namespace flashwok::test {
namespace {

using namespace flashwok::cuda;

TEST(CudaBuilt, OtherHeadDimsAreRefusedByName) {
  for (const std::int64_t head_dim : {32, 64, 96, 104, 128, 192, 256}) {
    ProblemData data({.name = "built",
                      .dtype = DType::kBFloat16,
                      .batch = 1,
                      .head_dim = head_dim,
                      .backward = false});
    const flashwok::Layout layout(data.problem);
    // V1's table has nothing between 64 and 128, the others' have 96.
    for (const auto& [objection, below] : {std::pair{&ForwardV1Objection, 64},
                                           {&ForwardV2Objection, 96},
                                           {&ForwardV3Objection, 96}}) {
      const bool built = head_dim > below && head_dim <= 128;
      const std::string said = objection(layout);
      EXPECT_EQ(said.starts_with("head_dim: this build lacks the instance of "), !built)
          << head_dim << ": " << said;
      EXPECT_EQ(said.empty(), built) << head_dim << ": " << said;
    }
  }
}

TEST(CudaBuilt, LaunchersAreThereWhereTheInstancesAre) {
  const auto check = [](const auto& launchers, const auto& configs) {
    for (std::size_t row = 0; row < std::size(configs); ++row) {
      EXPECT_EQ(launchers[row] != nullptr, configs[row].head_dim == 128) << "row " << row;
    }
  };
  check(kForwardV1Launchers, kForwardV1Configs);
  check(kForwardV2Launchers, kForwardV2Configs);
  check(kForwardV3Launchers, kForwardV3Configs);
}

TEST(CudaBuilt, OneDtypeIsVisited) {
  EXPECT_FALSE(BuiltDType(DType::kFloat16));
  EXPECT_EQ(VisitDType(DType::kBFloat16, []<DType kType>() { return kType; }), DType::kBFloat16);
}

}  // namespace
}  // namespace flashwok::test
