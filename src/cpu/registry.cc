#include "cpu/registry.h"

#include <hwy/targets.h>

namespace flashwok {
namespace cpu {
namespace {

constexpr DType kBf16[] = {DType::kBFloat16};
constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kAll[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                          DType::kFloat8E5M2};

constexpr Kernel kKernels[] = {
    {"cpu_forward_v3_amx", Pass::kForward, Algorithm::kV3, kBf16, ForwardV3Bf16Bytes, ForwardV3Amx,
     nullptr, AmxProducts, "AMX_BF16"},
    {"cpu_forward_v3_avx512bf16", Pass::kForward, Algorithm::kV3, kBf16, ForwardV3Bf16Bytes,
     ForwardV3Avx512Bf16, nullptr, Avx512Bf16Products, "AVX512_BF16"},
    {"cpu_forward_v3", Pass::kForward, Algorithm::kV3, kAll, ForwardV3Bytes, ForwardV3},
    {"cpu_forward_v2", Pass::kForward, Algorithm::kV2, kWide, ForwardV2Bytes, ForwardV2},
    {"cpu_forward_v1", Pass::kForward, Algorithm::kV1, kWide, ForwardV1Bytes, ForwardV1},
    {"cpu_forward_standard", Pass::kForward, Algorithm::kStandard, kWide, ForwardStandardBytes,
     ForwardStandard},
    {"cpu_backward_v3_amx", Pass::kBackward, Algorithm::kV3, kBf16, BackwardV3Bf16Bytes, nullptr,
     BackwardV3Amx, AmxProducts, "AMX_BF16"},
    {"cpu_backward_v3_avx512bf16", Pass::kBackward, Algorithm::kV3, kBf16, BackwardV3Bf16Bytes,
     nullptr, BackwardV3Avx512Bf16, Avx512Bf16Products, "AVX512_BF16"},
    {"cpu_backward_v3", Pass::kBackward, Algorithm::kV3, kWide, BackwardV3Bytes, nullptr,
     BackwardV3},
    {"cpu_backward_v2", Pass::kBackward, Algorithm::kV2, kWide, BackwardV2Bytes, nullptr,
     BackwardV2},
    {"cpu_backward_v1", Pass::kBackward, Algorithm::kV1, kWide, BackwardV1Bytes, nullptr,
     BackwardV1},
    {"cpu_backward_standard", Pass::kBackward, Algorithm::kStandard, kWide, BackwardStandardBytes,
     nullptr, BackwardStandard},
};

}  // namespace

std::span<const Kernel> Registry() { return kKernels; }

}  // namespace cpu

std::vector<std::string> CpuTargets() {
  std::vector<std::string> names;
  for (std::int64_t rest = HWY_SUPPORTED_TARGETS & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    names.emplace_back(hwy::TargetName(rest & -rest));
  }
  return names;
}

}  // namespace flashwok
