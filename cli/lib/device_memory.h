// Memory of a CUDA device, and copies of host tensors in it.
#pragma once

#include <cstddef>
#include <vector>

#include "flashwok/attention.h"

namespace flashwok::cli {

// Blocks of one device's memory, freed together.
class DeviceMemory {
 public:
  explicit DeviceMemory(Device device) : device_(device) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // The device must be current. These throw BadInput where it has no room, Failure where it fails.
  void* Allocate(std::size_t bytes);
  // The same view of a copy; an absent tensor stays absent.
  Tensor Upload(const Tensor& host);

 private:
  const Device device_;
  std::vector<void*> blocks_;
};

// From the copy that Upload made of it.
void Download(const Tensor& copy, const Tensor& host);

// The tensors of a problem, of which some may be absent.
std::vector<Tensor*> TensorsOf(Problem& problem);
// The problem on another device, its shapes alone there: enough for Plan.
Problem ShapesOn(Device device, Problem problem);

}  // namespace flashwok::cli
