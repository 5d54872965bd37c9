// A log of time stamps for emulated kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "cuda/attention/stamp_log.h"

namespace flashwok::test {

// A log in memory, with bytes behind it that must stay.
class GuardedLog {
 public:
  GuardedLog(const std::vector<int>& blocks, int capacity)
      : bytes_(cuda::StampLog::Bytes(blocks.size(), static_cast<std::size_t>(capacity))),
        memory_(bytes_ + kGuard, kUntouched) {
    cuda::StampLog head;
    head.num_blocks = static_cast<std::uint32_t>(blocks.size());
    head.capacity = static_cast<std::uint32_t>(capacity);
    std::copy(blocks.begin(), blocks.end(), head.blocks);
    std::memcpy(memory_.data(), &head, sizeof(head));
    before_ = memory_;
  }
  cuda::StampLog* get() { return reinterpret_cast<cuda::StampLog*>(memory_.data()); }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> bytes = memory_;
    bytes.resize(bytes_);
    return bytes;
  }
  bool untouched() const { return memory_ == before_; }
  bool guarded() const {
    return std::count(memory_.end() - kGuard, memory_.end(), kUntouched) == kGuard;
  }

 private:
  static constexpr int kGuard = 4096;
  static constexpr std::byte kUntouched{0xAB};
  std::size_t bytes_;
  std::vector<std::byte> memory_, before_;
};

}  // namespace flashwok::test
