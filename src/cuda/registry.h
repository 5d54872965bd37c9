// The registry of the CUDA kernels: one row a kernel. Without CUDA in the build it is empty.
#pragma once

#include <span>
#include <string>

#include "common/layout.h"

namespace flashwok::cuda {

struct StampLog;  // attention/stamp_log.h

// What a kernel is given besides the problem; planned by the kernel's row.
struct Launch {
  int tile_q = 0;
  int tile_kv = 0;
  int num_splits = 1;
  std::int64_t chunk = 0;  // keys of a piece when num_splits > 1
  void* workspace = nullptr;
  void* stream = nullptr;
  StampLog* stamps = nullptr;  // on the device, for a kernel with time_stamps to write; may be null
};

// Of every kernel: float16 and bfloat16, unless the build has one of them alone.
std::span<const DType> DTypes();

struct Kernel {
  const char* name;
  Pass pass;
  Algorithm algorithm;
  int architecture;         // compute capability, 80 for 8.0
  bool newer;               // runs on newer ones too
  const char* requirement;  // the same in words
  // Why the problem is not one for it, beyond dtype and device; empty when it is.
  std::string (*objection)(const Layout&);
  // Tiles and splits; the request's num_splits (0: chosen) is in the problem.
  Launch (*plan)(const Layout&);
  std::size_t (*bytes)(const Layout&, const Launch&);  // of workspace
  Status (*forward)(const Problem&, const ForwardOutput&, const Launch&);
  bool time_stamps = false;  // it was built to record them
};

// Whether the build has machine code for the device, by its compute capability.
bool HasCode(int device);
// That, and the kernel runs on it.
bool Runs(const Kernel& kernel, int device);

// In the order in which Algorithm::kAuto prefers them.
std::span<const Kernel> Registry();

}  // namespace flashwok::cuda
