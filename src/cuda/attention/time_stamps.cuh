// Records what the roles of V3 do (stamp_log.h): the first thread of each warpgroup speaks for it.
// Switched off there is nothing of it in the machine code.
#pragma once

#include "cuda/attention/schedule.h"
#include "cuda/attention/stamp_log.h"
#include "cuda/ptx/clock.cuh"

namespace flashwok::cuda {

template <bool kOn>
class TimeStamps {
 public:
  __device__ __forceinline__ explicit TimeStamps(StampLog*) {}
  __device__ __forceinline__ void Done(V3Step, int = -1) {}
  __device__ __forceinline__ void Done(V3Step, const WorkItem&) {}
};

template <class Traits>
using StampsOf = TimeStamps<Traits::kTimeStamps>;

template <>
class TimeStamps<true> {
 public:
  // The role's first step begins. A null log: nothing is recorded.
  __device__ __forceinline__ explicit TimeStamps(StampLog* log) : log_(log) {
    if (log == nullptr || threadIdx.x % 128 != 0) return;
    for (std::uint32_t n = 0; n < log->num_blocks; ++n) {
      if (log->blocks[n] == blockIdx.x) slot_ = static_cast<int>(n);
    }
    if (slot_ < 0) return;
    left_ = static_cast<int>(log->capacity);
    next_ = reinterpret_cast<StampMark*>(log + 1) +
            static_cast<std::size_t>(slot_ * StampLog::kRoles + Role()) * log->capacity;
    log->tracks[slot_][Role()].multiprocessor = ptx::Multiprocessor();
    log->tracks[slot_][Role()].begin = Anchor();
  }
  TimeStamps(const TimeStamps&) = delete;
  TimeStamps& operator=(const TimeStamps&) = delete;
  __device__ __forceinline__ ~TimeStamps() {
    if (slot_ < 0) return;
    StampTrack& track = log_->tracks[slot_][Role()];
    track.count = log_->capacity - static_cast<std::uint32_t>(left_);
    track.end = Anchor();
  }

  // A step has ended.
  __device__ __forceinline__ void Done(V3Step step, int tile = -1) {
    if (slot_ >= 0) Put({ptx::Clock(), step, tile});
  }
  // It, and those that follow, belong to this work tile.
  __device__ __forceinline__ void Done(V3Step step, const WorkItem& work) {
    if (slot_ < 0) return;
    const auto batch = static_cast<std::uint64_t>(static_cast<std::uint32_t>(work.batch));
    Put({batch << 32 | static_cast<std::uint32_t>(work.head), V3Step::kWork, work.q_tile});
    Put({ptx::Clock(), step, -1});
  }

 private:
  __device__ __forceinline__ static int Role() { return static_cast<int>(threadIdx.x / 128); }

  // When the common time makes a step, so that the pair is as exact as the cycles are; it is not
  // waited for longer than kPatience cycles.
  __device__ __forceinline__ static StampAnchor Anchor() {
    constexpr std::uint64_t kPatience = 8192;
    const std::uint64_t start = ptx::Clock();
    const std::uint64_t before = ptx::GlobalTimer();
    StampAnchor anchor;
    do {
      anchor.nanoseconds = ptx::GlobalTimer();
      anchor.clock = ptx::Clock();
    } while (anchor.nanoseconds == before && anchor.clock - start < kPatience);
    return anchor;
  }

  __device__ __forceinline__ void Put(const StampMark& mark) {
    if (left_-- > 0) *next_++ = mark;
  }

  StampLog* const log_;
  StampMark* next_ = nullptr;
  int left_ = 0;   // below 0: so many were not kept
  int slot_ = -1;  // of the block in the log
};

}  // namespace flashwok::cuda
