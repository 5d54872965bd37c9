// Runs CUDA kernels as host code, thread block after thread block, every thread a fiber. For tests:
// the kernels' own files are compiled unchanged; cuda_shim.h stands for the language extensions
// and cuda/ptx/ here for src/cuda/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/ptx/tma.cuh"

namespace flashwok::emulator {

// What a kernel did wrong: a deadlock, an access outside shared memory, a misuse of an instruction.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  // 0: threads take turns in order, and every copy and product happens when it is issued. Any other
  // seed draws an order of threads and blocks, and when, within what the waits allow, each
  // asynchronous operation happens.
  std::uint64_t seed = 0;
  bool blocks_in_order = false;  // whatever the seed
  int resident_blocks = 1;       // that run by turns
};

// Calls `kernel` in each thread of each block of the grid. `threads` is a multiple of 32.
void Launch(dim3 grid, int threads, std::size_t shared_bytes, const std::function<void()>& kernel,
            const Options& options = {});

// What cuTensorMapEncodeTiled does, for rank 4 and element strides of 1: sizes in elements, the
// innermost first; strides of dimensions 1 to 3 in bytes; swizzle 0, 32, 64 or 128 bytes.
void EncodeTiled(cuda::ptx::TensorMap* map, int element_bytes, const void* base,
                 const std::uint64_t (&sizes)[4], const std::uint64_t (&strides)[3],
                 const std::uint32_t (&box)[4], int swizzle);

}  // namespace flashwok::emulator
