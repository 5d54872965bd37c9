// The buffers of a test in device memory, with the guards around them.
#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"
#include "flashwok/attention.h"
#include "tests/guarded_memory.h"

namespace flashwok::test {

// Fails the test with what the status says.
inline void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : status_(cuda::Allocate(bytes, &data_)) {}
  ~DeviceMemory() {
    if (status_.ok()) cuda::Free(data_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const Status& status() const { return status_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  Status status_;
};

class DeviceMirror {
 public:
  enum class Part : std::uint8_t { kAll, kOutputs };

  explicit DeviceMirror(GuardedMemory& memory)
      : regions_(memory.Regions()), device_(Place(regions_, &offsets_)) {
    Require(device_.status());
  }

  void Upload(Part part = Part::kAll) {
    ForEachRegion(part, [&](std::span<std::byte> host, std::byte* device) {
      Require(cuda::CopyToDevice(device, host.data(), host.size()));
    });
  }

  void Download(Part part = Part::kAll) {
    ForEachRegion(part, [&](std::span<std::byte> host, std::byte* device) {
      Require(cuda::CopyToHost(host.data(), device, host.size()));
    });
  }

  // All bytes of the outputs as they are on the host.
  std::vector<std::byte> OutputBytes() const {
    std::vector<std::byte> bytes;
    for (const GuardedMemory::Region& region : regions_) {
      if (region.output) bytes.insert(bytes.end(), region.bytes.begin(), region.bytes.end());
    }
    return bytes;
  }

  // The same view of the device's copy.
  Tensor On(Tensor tensor) const {
    if (!tensor.present()) return tensor;
    const auto* data = static_cast<const std::byte*>(tensor.data);
    for (std::size_t n = 0; n < regions_.size(); ++n) {
      const std::span<std::byte> host = regions_[n].bytes;
      if (data < host.data() || data >= host.data() + host.size()) continue;
      tensor.data = device_.data() + offsets_[n] + (data - host.data());
      tensor.device = {DeviceType::kCuda, 0};
      return tensor;
    }
    throw std::logic_error("a tensor outside the mirrored memory");
  }

  Problem On(Problem problem) const {
    for (Tensor* tensor :
         {&problem.q, &problem.k, &problem.v, &problem.cu_seqlens_q, &problem.cu_seqlens_k,
          &problem.seqused_k, &problem.page_table, &problem.bias, &problem.mask,
          &problem.alibi_slopes, &problem.q_descale, &problem.k_descale, &problem.v_descale}) {
      *tensor = On(*tensor);
    }
    return problem;
  }

  ForwardOutput On(ForwardOutput output) const {
    for (Tensor* tensor : {&output.o, &output.lse, &output.row_max, &output.row_sum}) {
      *tensor = On(*tensor);
    }
    return output;
  }

 private:
  static constexpr std::size_t kAlign = 256;

  // The size of all regions, one after another.
  static std::size_t Place(const std::vector<GuardedMemory::Region>& regions,
                           std::vector<std::size_t>* offsets) {
    std::size_t size = 0;
    for (const GuardedMemory::Region& region : regions) {
      offsets->push_back(size);
      size += (region.bytes.size() + kAlign - 1) / kAlign * kAlign;
    }
    return size;
  }

  template <class Visit>
  void ForEachRegion(Part part, const Visit& visit) {
    for (std::size_t n = 0; n < regions_.size(); ++n) {
      if (part == Part::kOutputs && !regions_[n].output) continue;
      visit(regions_[n].bytes, device_.data() + offsets_[n]);
    }
  }

  std::vector<GuardedMemory::Region> regions_;
  std::vector<std::size_t> offsets_;
  DeviceMemory device_;
};

}  // namespace flashwok::test
