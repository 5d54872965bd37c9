// Stands for src/cuda/ptx/named_barrier.cuh.
#pragma once

namespace flashwok::cuda::ptx {

inline void BarrierSync(int barrier, int threads) {
  emulator::NamedBarrier(barrier, threads, true);
}
inline void BarrierArrive(int barrier, int threads) {
  emulator::NamedBarrier(barrier, threads, false);
}

}  // namespace flashwok::cuda::ptx
