// Stands for src/cuda/ptx/mbarrier.cuh.
#pragma once

#include <cstdint>

#include "cuda/ptx/shared_address.cuh"

namespace flashwok::cuda::ptx {

using Mbarrier = std::uint64_t;

inline void MbarrierInit(Mbarrier* barrier, int arrivals) {
  emulator::InitMbarrier(SharedAddress(barrier), arrivals);
}
inline void MbarrierFenceInit() { emulator::FenceMbarrierInit(); }
inline void MbarrierArrive(Mbarrier* barrier) {
  emulator::ArriveMbarrier(SharedAddress(barrier), 0);
}
inline void MbarrierArriveExpect(Mbarrier* barrier, std::uint32_t bytes) {
  emulator::ArriveMbarrier(SharedAddress(barrier), bytes);
}
inline void MbarrierWait(Mbarrier* barrier, std::uint32_t parity) {
  emulator::WaitMbarrier(SharedAddress(barrier), parity);
}

}  // namespace flashwok::cuda::ptx
