// Stands for the wgmma.cuh that tools/generate_wgmma.py writes, for every n.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

inline void WgmmaFence() { emulator::FenceProducts(); }
inline void WgmmaCommit() { emulator::CommitProducts(); }
template <int kPending>
void WgmmaWait() {
  emulator::WaitProducts(kPending);
}

template <int kCount>
void WgmmaHold(float (&)[kCount]) {}
inline void WgmmaAfter(float) {}

template <DType kType, int kN, bool kTransposed>
struct Wgmma {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);

  static void Shared(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
    emulator::IssueProduct({kType, kN, kTransposed, accumulate}, d, nullptr, a, b);
  }
  static void Registers(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                        bool accumulate) {
    emulator::IssueProduct({kType, kN, kTransposed, accumulate}, d, a, 0, b);
  }
};

}  // namespace flashwok::cuda::ptx
