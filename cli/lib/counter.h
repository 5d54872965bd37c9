// Counts, while a call runs, the bytes that pass between slow memory and the worktop.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "flashwok/trace.h"
#include "lib/text.h"

namespace flashwok::cli {

inline constexpr int kNumRoles = static_cast<int>(Role::kDLse) + 1;

class TrafficCounter : public Observer {
 public:
  void OnEvent(const Event& event) override {
    const auto role = static_cast<std::size_t>(event.role);
    const auto add = [](std::atomic<std::int64_t>& sum, std::int64_t amount) {
      sum.fetch_add(amount, std::memory_order_relaxed);
    };
    if (event.kind == EventKind::kLoad) add(read_[role], event.bytes);
    if (event.kind == EventKind::kStore) add(written_[role], event.bytes);
    if (event.kind == EventKind::kProduct) add(flops_, event.flops);
    if (event.kind == EventKind::kSkip) add(skipped_, 1);
  }

  std::int64_t read(Role role) const { return read_[static_cast<std::size_t>(role)]; }
  std::int64_t written(Role role) const { return written_[static_cast<std::size_t>(role)]; }
  std::int64_t read() const { return Sum(read_); }
  std::int64_t written() const { return Sum(written_); }
  std::int64_t flops() const { return flops_; }  // of the products done, masked tiles in full
  std::int64_t skipped() const { return skipped_; }

  // {"read": ..., "written": ..., "tensors": {"Q": {"read": ..., "written": ...}, ...}}
  Json ToJson() const;
  // One line a tensor that was touched.
  Table ToTable() const;

 private:
  using Counts = std::array<std::atomic<std::int64_t>, kNumRoles>;
  static std::int64_t Sum(const Counts& counts) {
    std::int64_t sum = 0;
    for (const auto& count : counts) sum += count;
    return sum;
  }

  Counts read_{};
  Counts written_{};
  std::atomic<std::int64_t> flops_{0};
  std::atomic<std::int64_t> skipped_{0};
};

}  // namespace flashwok::cli
