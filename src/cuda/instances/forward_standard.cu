#include "cuda/instances/forward_standard.h"

#include "common/tile_range.h"
#include "cuda/kernels/forward_standard.cuh"

namespace flashwok::cuda {
namespace {

std::int64_t Rows(const ForwardStandardParams& p) {
  return p.base.batch * p.base.num_heads * p.base.total_q;
}

}  // namespace

cudaError_t LaunchStandardSoftmax(DType dtype, const ForwardStandardParams& p,
                                  cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(Rows(p));
  constexpr int kShared = sizeof(ForwardStandardStorage);
  if (dtype == DType::kBFloat16) {
    StandardSoftmaxKernel<DType::kBFloat16><<<blocks, 256, kShared, stream>>>(p);
  } else {
    StandardSoftmaxKernel<DType::kFloat16><<<blocks, 256, kShared, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchStandardRepair(DType dtype, const ForwardStandardParams& p,
                                 cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(Rows(p), 8));
  if (dtype == DType::kBFloat16) {
    StandardRepairKernel<DType::kBFloat16><<<blocks, 256, 0, stream>>>(p);
  } else {
    StandardRepairKernel<DType::kFloat16><<<blocks, 256, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace flashwok::cuda
