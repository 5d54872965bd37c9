#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include "cuda/check.h"

namespace flashwok::cuda {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

// 0 when there is no such device. Asked of CUDA once, for the first of many devices.
template <cudaDeviceAttr attribute>
int Attribute(int device) {
  static std::array<std::atomic<int>, 64> known{};
  const auto index = static_cast<std::size_t>(device);
  int value = index < known.size() ? known[index].load(std::memory_order_relaxed) : 0;
  if (value != 0) return value;
  if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  if (index < known.size()) known[index].store(value, std::memory_order_relaxed);
  return value;
}

}  // namespace

Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal;
  return {code, std::string(what) + ": " + cudaGetErrorString(error)};
}

int DeviceCount() {
  static std::atomic<int> known{0};  // it does not change once there are some
  int count = known.load(std::memory_order_relaxed);
  if (count > 0) return count;
  if (cudaGetDeviceCount(&count) == cudaSuccess) {
    known.store(count, std::memory_order_relaxed);
    return count;
  }
  (void)cudaGetLastError();  // the next call's error is its own
  return 0;
}

std::string Absence() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  (void)cudaGetLastError();
  return error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
}

std::string DeviceName(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) return properties.name;
  (void)cudaGetLastError();
  return {};
}

int Architecture(int device) {
  return 10 * Attribute<cudaDevAttrComputeCapabilityMajor>(device) +
         Attribute<cudaDevAttrComputeCapabilityMinor>(device);
}

int SharedKib(int device) {
  return std::max(Attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) / 1024, 99);
}

int Multiprocessors(int device) {
  return std::max(Attribute<cudaDevAttrMultiProcessorCount>(device), 1);
}

DeviceGuard::DeviceGuard(int device) {
  status_ = FromCuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (!status_.ok()) return;
  if (before_ == device) {
    before_ = -1;
  } else {
    status_ = FromCuda(cudaSetDevice(device), "cudaSetDevice");
  }
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

Status AllocateAsync(std::size_t bytes, void* stream, void** pointer) {
  return FromCuda(cudaMallocAsync(pointer, bytes, Stream(stream)), "cudaMallocAsync");
}

Status FreeAsync(void* pointer, void* stream) {
  return pointer == nullptr ? Status()
                            : FromCuda(cudaFreeAsync(pointer, Stream(stream)), "cudaFreeAsync");
}

Status Allocate(std::size_t bytes, void** pointer) {
  return FromCuda(cudaMalloc(pointer, bytes), "cudaMalloc");
}

void Free(void* pointer) { (void)cudaFree(pointer); }

Status CopyToDevice(void* device, const void* host, std::size_t bytes) {
  return FromCuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

Status CopyToHost(void* host, const void* device, std::size_t bytes) {
  return FromCuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

Status Synchronize() { return FromCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

Stopwatch::Stopwatch() {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  (void)cudaEventCreate(&begin);
  (void)cudaEventCreate(&end);
  begin_ = begin;
  end_ = end;
}

Stopwatch::~Stopwatch() {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(end_));
}

void Stopwatch::Start() { (void)cudaEventRecord(static_cast<cudaEvent_t>(begin_)); }

double Stopwatch::Stop() {
  float milliseconds = 0.0f;
  (void)cudaEventRecord(static_cast<cudaEvent_t>(end_));
  (void)cudaEventSynchronize(static_cast<cudaEvent_t>(end_));
  (void)cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin_),
                             static_cast<cudaEvent_t>(end_));
  return milliseconds * 1e-3;
}

}  // namespace flashwok::cuda
