// CUDA devices and their memory for callers that include no CUDA header. Without CUDA in the build,
// or without a driver, there are no devices and every other call says so.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "flashwok/status.h"
#include "flashwok/tensor.h"

namespace flashwok::cuda {

int DeviceCount();
std::string DeviceName(int device);
// Compute capability as one number, 90 for 9.0; 0 when there is no such device.
int Architecture(int device);
// What a thread block can have of shared memory, in KiB; at least the 99 that every device from
// compute capability 8.0 on gives.
int SharedKib(int device);
int Multiprocessors(int device);
// Why there is no device: a build without CUDA, no driver, an old one; empty when there is one.
std::string Absence();

// Makes a device current and the one before it current again at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  int before_ = -1;
  Status status_;
};

// Ordered on `stream`; Free may be given null.
Status AllocateAsync(std::size_t bytes, void* stream, void** pointer);
Status FreeAsync(void* pointer, void* stream);

// For programs: these wait until the copy is done.
Status Allocate(std::size_t bytes, void** pointer);
void Free(void* pointer);
Status CopyToDevice(void* device, const void* host, std::size_t bytes);
Status CopyToHost(void* host, const void* device, std::size_t bytes);
Status Synchronize();

// Seconds of the work between two points of the default stream.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void Start();
  double Stop();  // waits for the work

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace flashwok::cuda
