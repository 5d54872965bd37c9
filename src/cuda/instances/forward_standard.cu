#include "common/tile_range.h"
#include "cuda/config/built.h"
#include "cuda/instances/forward_standard.h"
#include "cuda/kernels/forward_standard.cuh"

namespace flashwok::cuda {
namespace {

using Kernel = void (*)(ForwardStandardParams);

template <DType kType>
Kernel FindSoftmax(int chunks) {
  switch (chunks) {
    case 1: return StandardPlainSoftmaxKernel<kType, 1>;
    case 2: return StandardPlainSoftmaxKernel<kType, 2>;
    case 4: return StandardPlainSoftmaxKernel<kType, 4>;
    case 8: return StandardPlainSoftmaxKernel<kType, 8>;
    default: return StandardSoftmaxKernel<kType>;
  }
}

}  // namespace

cudaError_t LaunchStandardSoftmax(DType dtype, const ForwardStandardParams& p,
                                  cudaStream_t stream) {
  const StandardRowShape shape = StandardRowShape::Make(p);
  const Kernel kernel =
      VisitDType(dtype, [&]<DType kType>() { return FindSoftmax<kType>(shape.chunks); });
  constexpr int kShared = sizeof(ForwardStandardStorage);
  kernel<<<static_cast<unsigned>(p.rows()), static_cast<unsigned>(shape.threads), kShared,
           stream>>>(p);
  return cudaGetLastError();
}

cudaError_t LaunchStandardRepair(DType dtype, const ForwardStandardParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(p.rows(), 8));
  const Kernel kernel =
      VisitDType(dtype, [&]<DType kType>() -> Kernel { return StandardRepairKernel<kType>; });
  kernel<<<blocks, 256, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace flashwok::cuda
