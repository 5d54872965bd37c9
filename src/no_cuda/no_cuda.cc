// What stands in for src/cuda in a build without CUDA.
#include "cuda/device.h"
#include "cuda/merge_states.h"
#include "cuda/registry.h"

namespace flashwok::cuda {
namespace {

Status Missing() { return Status::Unsupported(Absence()); }

}  // namespace

bool HasCode(int) { return false; }
bool Runs(const Kernel&, int) { return false; }
std::span<const DType> DTypes() { return {}; }
std::span<const Kernel> Registry() { return {}; }

Status MergeStates(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, void*) {
  return Missing();
}

int DeviceCount() { return 0; }
std::string DeviceName(int) { return {}; }
int Architecture(int) { return 0; }
std::string Absence() { return "this build has no CUDA kernels"; }

DeviceGuard::DeviceGuard(int) : status_(Missing()) {}
DeviceGuard::~DeviceGuard() = default;

Status AllocateAsync(std::size_t, void*, void**) { return Missing(); }
Status FreeAsync(void*, void*) { return Missing(); }
Status Allocate(std::size_t, void**) { return Missing(); }
void Free(void*) {}
Status CopyToDevice(void*, const void*, std::size_t) { return Missing(); }
Status CopyToHost(void*, const void*, std::size_t) { return Missing(); }
Status Synchronize() { return Missing(); }

Stopwatch::Stopwatch() = default;
Stopwatch::~Stopwatch() = default;
void Stopwatch::Start() {}
double Stopwatch::Stop() { return 0.0; }

}  // namespace flashwok::cuda
