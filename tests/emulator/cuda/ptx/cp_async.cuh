// Stands for src/cuda/ptx/cp_async.cuh.
#pragma once

#include <cstdint>

namespace flashwok::cuda::ptx {

inline void CopyAsync16(std::uint32_t destination, const void* source, bool valid) {
  emulator::CopyAsync(destination, source, valid);
}
inline void CopyAsyncCommit() { emulator::CommitCopies(); }
template <int kPending>
void CopyAsyncWait() {
  emulator::WaitCopies(kPending);
}

inline void PrefetchL2(const void*) {}

}  // namespace flashwok::cuda::ptx
