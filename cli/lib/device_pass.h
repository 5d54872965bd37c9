// A forward pass on a CUDA device: copies of a problem and of its results there, and the scratch.
#pragma once

#include <cstddef>
#include <vector>

#include "flashwok/attention.h"
#include "lib/device_memory.h"

namespace flashwok::cli {

class DevicePass {
 public:
  // `output`: on the host, as the device's copy is to be before the first run. Throws where the
  // device has no room, or fails.
  DevicePass(Device device, const Problem& problem, const ForwardOutput& output,
             std::size_t workspace_bytes);

  // One call, with the scratch in place of `execution`'s, and its seconds on the device.
  Status Forward(Execution execution, double* seconds);
  // One call of which these blocks are recorded, at most `capacity` marks of each of their roles;
  // the kernel has time_stamps. Returns the StampLog.
  std::vector<std::byte> Record(const Execution& execution, const std::vector<int>& blocks,
                                int capacity, double* seconds);
  // The results, to the tensors that they were copied from.
  void Download() const;

 private:
  const Device device_;
  const ForwardOutput host_;
  DeviceMemory memory_;
  Problem problem_;
  ForwardOutput output_;
  void* workspace_ = nullptr;
  const std::size_t workspace_bytes_;
};

}  // namespace flashwok::cli
