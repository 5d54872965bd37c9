// Stands for src/cuda/ptx/setmaxnreg.cuh.
#pragma once

namespace flashwok::cuda::ptx {

template <int kRegisters>
void GiveRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulator::SetRegisters(kRegisters, false);
}
template <int kRegisters>
void TakeRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulator::SetRegisters(kRegisters, true);
}

}  // namespace flashwok::cuda::ptx
