#include "cpu/registry.h"

#include <hwy/targets.h>

namespace flashwok {
namespace cpu {
namespace {

constexpr const char* kWide = "float32 float16 bfloat16";
constexpr const char* kAll = "float32 float16 bfloat16 float8_e4m3 float8_e5m2";

constexpr Kernel kKernels[] = {
    {"cpu_forward_v3", Pass::kForward, Algorithm::kV3, kAll, true, ForwardV3Bytes, ForwardV3,
     nullptr},
    {"cpu_forward_v2", Pass::kForward, Algorithm::kV2, kWide, false, ForwardV2Bytes, ForwardV2,
     nullptr},
    {"cpu_forward_v1", Pass::kForward, Algorithm::kV1, kWide, false, ForwardV1Bytes, ForwardV1,
     nullptr},
    {"cpu_forward_standard", Pass::kForward, Algorithm::kStandard, kWide, false,
     ForwardStandardBytes, ForwardStandard, nullptr},
    {"cpu_backward_v3", Pass::kBackward, Algorithm::kV3, kWide, false, BackwardV3Bytes, nullptr,
     BackwardV3},
    {"cpu_backward_v2", Pass::kBackward, Algorithm::kV2, kWide, false, BackwardV2Bytes, nullptr,
     BackwardV2},
    {"cpu_backward_v1", Pass::kBackward, Algorithm::kV1, kWide, false, BackwardV1Bytes, nullptr,
     BackwardV1},
    {"cpu_backward_standard", Pass::kBackward, Algorithm::kStandard, kWide, false,
     BackwardStandardBytes, nullptr, BackwardStandard},
};

}  // namespace

std::span<const Kernel> Registry() { return kKernels; }

}  // namespace cpu

std::vector<KernelInfo> Kernels() {
  std::vector<KernelInfo> kernels;
  for (const cpu::Kernel& kernel : cpu::Registry()) {
    kernels.push_back(
        {kernel.name, kernel.pass, kernel.algorithm, Device{}, kernel.dtypes, "", true});
  }
  return kernels;
}

std::vector<std::string> CpuTargets() {
  std::vector<std::string> names;
  for (std::int64_t rest = HWY_SUPPORTED_TARGETS & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    names.emplace_back(hwy::TargetName(rest & -rest));
  }
  return names;
}

}  // namespace flashwok
