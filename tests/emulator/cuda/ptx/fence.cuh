// Stands for src/cuda/ptx/fence.cuh.
#pragma once

namespace flashwok::cuda::ptx {

inline void FenceProxyAsync() { emulator::FenceAsync(); }

}  // namespace flashwok::cuda::ptx
