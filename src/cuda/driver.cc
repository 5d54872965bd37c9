#include "cuda/driver.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/check.h"

namespace flashwok::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) {
    return reinterpret_cast<Encode>(function);
  }
  (void)cudaGetLastError();
  return nullptr;
}

}  // namespace

Status EncodeWithDriver(const TensorMapRequest& request, ptx::TensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) {
    return {StatusCode::kInternal, "the CUDA driver has no cuTensorMapEncodeTiled"};
  }
  static_assert(sizeof(ptx::TensorMap) == sizeof(CUtensorMap));
  const cuuint64_t sizes[] = {request.sizes[0], request.sizes[1], request.sizes[2],
                              request.sizes[3]};
  const cuuint64_t strides[] = {request.strides[0], request.strides[1], request.strides[2]};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult result = encode(
      reinterpret_cast<CUtensorMap*>(map),
      request.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, request.base, sizes, strides, request.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      request.swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {StatusCode::kInternal,
          "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result))};
}

}  // namespace flashwok::cuda
