#include "cuda/registry.h"

#include "cuda/config/built.h"
#include "cuda/config/time_stamps.h"
#include "cuda/device.h"
#include "cuda/kernels.h"

namespace flashwok::cuda {
namespace {

constexpr const char* kAmpere = "compute capability 8.0 or newer";
constexpr const char* kHopper = "compute capability 9.0";

constexpr Kernel kKernels[] = {
    {"cuda_forward_v3", Pass::kForward, Algorithm::kV3, 90, false, kHopper, ForwardV3Objection,
     PlanForwardV3, ForwardV3Bytes, ForwardV3, kTimeStamps},
    {"cuda_forward_v2", Pass::kForward, Algorithm::kV2, 80, true, kAmpere, ForwardV2Objection,
     PlanForwardV2, ForwardV2Bytes, ForwardV2},
    {"cuda_forward_v1", Pass::kForward, Algorithm::kV1, 80, true, kAmpere, ForwardV1Objection,
     PlanForwardV1, ForwardV1Bytes, ForwardV1},
    {"cuda_forward_standard", Pass::kForward, Algorithm::kStandard, 80, true, kAmpere,
     ForwardStandardObjection, PlanForwardStandard, ForwardStandardBytes, ForwardStandard},
};

}  // namespace

std::span<const DType> DTypes() {
  static constexpr DType kBoth[] = {DType::kFloat16, DType::kBFloat16};
  const std::span<const DType> both = kBoth;
  if (!BuiltDType(DType::kFloat16)) return both.last(1);
  return both.first(BuiltDType(DType::kBFloat16) ? 2 : 1);
}

std::span<const Kernel> Registry() { return kKernels; }

// Machine code is built for 8.0, which runs on 8.x, and for 9.0.
bool HasCode(int device) {
  const int architecture = Architecture(device);
  return architecture / 10 == 8 || architecture == 90;
}

bool Runs(const Kernel& kernel, int device) {
  const int architecture = Architecture(device);
  return HasCode(device) && (kernel.newer ? architecture >= kernel.architecture
                                          : architecture == kernel.architecture);
}

}  // namespace flashwok::cuda
