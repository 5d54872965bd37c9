// A thread block that runs: its fibers, who waits for what, and the state of its units.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "barriers.h"
#include "copies.h"
#include "emulator.h"
#include "fiber.h"
#include "policy.h"
#include "products.h"
#include "shared_memory.h"

namespace flashwok::emulator {

constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;

// For the report of a deadlock.
struct Wait {
  const char* what = "";
  std::uint32_t number = 0;
};

// Runs once for the lanes of a mask that have all arrived; an argument a lane.
using CollectiveBody = void (*)(void* const* lanes, std::uint32_t mask);

struct Rendezvous {
  const char* what = "";
  CollectiveBody body = nullptr;
  std::uint32_t mask = 0, arrived = 0;
  std::array<void*, 32> arguments = {};
};

struct Warp {
  std::uint32_t ready = kAllLanes, alive = kAllLanes;
  int rank = 0;  // the smaller, the sooner, with Turns::kPriority
  int registers = 0;
  std::uint32_t led = 0;  // the lanes for whom one runs a collective's body
  std::vector<Rendezvous> pending;
};

struct Thread {
  Fiber fiber;
  Wait wait;
  std::uint64_t fenced = 0;       // the time of its last fence.proxy.async
  std::uint64_t fenced_init = 0;  // and fence.mbarrier_init
  ThreadCopies copies;
};

class Block {
 public:
  Block(dim3 index, int threads, std::size_t shared_bytes, const std::function<void()>& kernel,
        const Policy& policy, Random& random, StackPool& stacks);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Lets one warp run, or one asynchronous operation; false when all threads are done.
  bool Step();

  // Of the thread that runs.
  int thread() const { return thread_; }
  int warp() const { return thread_ / 32; }
  Thread& self() { return threads_[static_cast<std::size_t>(thread_)]; }
  Warp& self_warp() { return warps_[static_cast<std::size_t>(warp())]; }

  int num_threads() const { return static_cast<int>(threads_.size()); }
  int alive() const { return alive_; }
  Thread& thread(int i) { return threads_[static_cast<std::size_t>(i)]; }
  std::vector<Warp>& warps() { return warps_; }

  void Suspend(Wait wait);  // until Wake
  void Wake(int thread);
  void Yield();
  // Returns once `body` has run.
  void Collective(const char* what, std::uint32_t mask, CollectiveBody body, void* argument);
  // The next cycle of this block's clock; of all blocks two are a nanosecond.
  std::uint64_t Tick() {
    ++all_ticks_;
    return ++time_;
  }
  // In steps of 32, as a device's.
  std::uint64_t Nanoseconds() {
    Tick();
    return all_ticks_ / 64 * 32;
  }

  const Policy policy;
  Random& random;
  SharedMemory shared;
  Barriers barriers;
  TileLoads loads;
  std::vector<Warpgroup> warpgroups;
  int register_pool = 0;  // of a lane's registers over all warps: what the launch was given
  std::vector<int> register_waiters;  // threads that stand for warps

 private:
  static void Main();  // of a fiber
  int PickWarp();
  void RunWarp(int warp);
  void Finish();  // a thread
  void Lead(Warp& warp, Rendezvous* found);  // runs the body, and frees the others
  std::string Deadlock() const;
  std::string Name() const;

  const std::function<void()>& kernel_;
  StackPool& stacks_;
  dim3 index_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  int thread_ = 0, alive_ = 0, last_warp_ = -1, last_rank_ = 0;
  static inline std::uint64_t all_ticks_ = 0;
  std::uint64_t time_ = 0, idle_ = 0;  // idle: threads that only yielded, in a row
  std::exception_ptr failure_;
};

// The block whose thread runs.
Block& Here();

}  // namespace flashwok::emulator
