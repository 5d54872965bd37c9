// Records what the roles of V3 do (stamp_log.h): the first thread of each warpgroup speaks for it.
// Switched off there is nothing of it in the machine code.
#pragma once

#include "cuda/attention/forward_v3_pipeline.cuh"
#include "cuda/attention/schedule.h"
#include "cuda/attention/stamp_log.h"
#include "cuda/ptx/clock.cuh"
#include "cuda/ptx/store_if.cuh"

namespace flashwok::cuda {

template <bool kOn>
class TimeStamps {
 public:
  __device__ __forceinline__ explicit TimeStamps(StampLog*) {}
  __device__ __forceinline__ void Begin(const WorkItem&) {}
  __device__ __forceinline__ void Done(V3Step, int = -1) {}
  __device__ __forceinline__ void Done(V3Step, const WorkItem&) {}
  __device__ __forceinline__ void Done(V3Step, int, const float (&)[2]) {}
};

template <class Traits>
using StampsOf = TimeStamps<Traits::kTimeStamps>;

template <>
class TimeStamps<true> {
 public:
  // The role's first step begins. A null log: nothing is recorded. For whole warps.
  __device__ __forceinline__ explicit TimeStamps(StampLog* log) : log_(log) {
    const int slot = Slot();
    end_ = Uniform(slot < 0 ? 0 : (Track(slot) + 1) * log->capacity);
    if (slot >= 0 && Speaks()) {
      next_ = Track(slot) * log->capacity;
      StampTrack& track = log->tracks[slot][Role()];
      track.multiprocessor = ptx::Multiprocessor();
      track.begin = Anchor();
    }
    __syncwarp();
  }
  TimeStamps(const TimeStamps&) = delete;
  TimeStamps& operator=(const TimeStamps&) = delete;
  __device__ __forceinline__ ~TimeStamps() {
    const int slot = Slot();
    if (slot >= 0 && Speaks()) {
      StampTrack& track = log_->tracks[slot][Role()];
      track.count = next_ - Track(slot) * log_->capacity;
      track.end = Anchor();
    }
    __syncwarp();
  }

  // The role has this work tile.
  __device__ __forceinline__ void Begin(const WorkItem& work) {
    const auto batch = static_cast<std::uint64_t>(static_cast<std::uint32_t>(work.batch));
    Put(batch << 32 | static_cast<std::uint32_t>(work.head), V3Step::kWork, work.q_tile);
  }
  // A step has ended.
  __device__ __forceinline__ void Done(V3Step step, int tile = -1) {
    Put(ptx::Clock(), step, tile);
  }
  // It is of this work tile.
  __device__ __forceinline__ void Done(V3Step step, const WorkItem& work) {
    Begin(work);
    Done(step);
  }
  // And so has the arithmetic that led to row_sum.
  __device__ __forceinline__ void Done(V3Step step, int tile, const float (&row_sum)[2]) {
    Put(ptx::ClockAfter(row_sum[0] + row_sum[1]), step, tile);
  }

 private:
  static constexpr std::uint32_t kSilent = 1u << 31;  // beyond every end

  __device__ __forceinline__ static bool Speaks() { return threadIdx.x % 128 == 0; }
  __device__ __forceinline__ static std::uint32_t Role() { return threadIdx.x / 128; }
  __device__ __forceinline__ static std::uint32_t Track(int slot) {
    return static_cast<std::uint32_t>(slot * StampLog::kRoles) + Role();
  }
  // The block's in the log, or -1.
  __device__ __forceinline__ int Slot() const {
    int slot = -1;
    const int slots = log_ == nullptr ? 0 : static_cast<int>(log_->num_blocks);
    for (int n = 0; n < slots; ++n) {
      if (log_->blocks[n] == blockIdx.x) slot = n;
    }
    return slot;
  }

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

  // A StampMark, without a branch that would part the lanes.
  __device__ __forceinline__ void Put(std::uint64_t clock, V3Step step, int tile) {
    const auto high = static_cast<std::uint64_t>(static_cast<std::uint32_t>(tile)) << 32;
    ptx::StoreIf(next_ < end_, reinterpret_cast<StampMark*>(log_ + 1) + next_, clock,
                 high | static_cast<std::uint32_t>(step));
    ++next_;
  }

  StampLog* const log_;
  std::uint32_t next_ = kSilent;  // of all marks; past its end those that are not kept
  std::uint32_t end_ = 0;         // of the role's
};

}  // namespace flashwok::cuda
