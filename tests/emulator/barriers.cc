#include "barriers.h"

#include <cstring>
#include <string>

#include "block.h"

namespace flashwok::emulator {
namespace {

// What an initialised mbarrier holds, so that one overwritten is noticed.
constexpr std::uint64_t kCookie = 0x6D62617272696572u;
constexpr std::int64_t kMaxBytes = (1 << 20) - 1;  // PTX ISA, "Tracking asynchronous operations"

std::string Name(std::uint32_t address) { return "mbarrier at " + std::to_string(address); }

}  // namespace

void Barriers::Open(Block& block, BlockBarrier& barrier) {
  barrier.result_ones = barrier.ones;
  barrier.result_of = barrier.arrived;
  barrier.ones = barrier.arrived = barrier.expected = 0;
  ++barrier.generation;
  for (int thread : barrier.waiting) block.Wake(thread);
  barrier.waiting.clear();
}

int Barriers::Sync(Block& block, Vote vote, int predicate) {
  BlockBarrier& barrier = named_[0];
  if (barrier.expected > 0) throw Error("__syncthreads amid a bar.sync 0 of some threads");
  barrier.expected = -1;
  ++barrier.arrived;
  barrier.ones += predicate != 0;
  if (barrier.arrived == block.alive()) {
    Open(block, barrier);
  } else {
    barrier.waiting.push_back(block.thread());
    block.Suspend({"__syncthreads", 0});
  }
  switch (vote) {
    case Vote::kOr: return barrier.result_ones != 0;
    case Vote::kAnd: return barrier.result_ones == barrier.result_of;
    case Vote::kCount: return barrier.result_ones;
  }
  return 0;
}

void Barriers::ThreadLeft(Block& block) {
  BlockBarrier& barrier = named_[0];
  if (barrier.expected == -1 && barrier.arrived == block.alive()) Open(block, barrier);
}

void Barriers::Named(Block& block, int id, int threads, bool wait) {
  if (id < 0 || id > 15) throw Error("bar.sync: no barrier " + std::to_string(id));
  if (threads <= 0 || threads % 32 != 0 || threads > block.num_threads()) {
    throw Error("bar.sync: for " + std::to_string(threads) + " threads");
  }
  BlockBarrier& barrier = named_[static_cast<std::size_t>(id)];
  if (barrier.expected != 0 && barrier.expected != threads) {
    throw Error("bar.sync " + std::to_string(id) + ": counts differ");
  }
  barrier.expected = threads;
  barrier.arrived += 32;
  if (barrier.arrived == threads) {
    Open(block, barrier);
  } else if (wait) {
    barrier.waiting.push_back(block.thread());
    block.Suspend({"bar.sync", static_cast<std::uint32_t>(id)});
  }
}

MbarrierState& Barriers::Find(Block& block, std::uint32_t address, const char* what) {
  const unsigned char* memory = block.shared.At(address, 8, 8, what);
  const auto found = mbarriers_.find(address);
  if (found == mbarriers_.end()) {
    throw Error(std::string(what) + ": " + Name(address) + " is not initialised");
  }
  std::uint64_t cookie;
  std::memcpy(&cookie, memory, sizeof(cookie));
  if (cookie != (kCookie ^ address)) {
    throw Error(std::string(what) + ": " + Name(address) + " was overwritten");
  }
  return found->second;
}

void Barriers::Init(Block& block, std::uint32_t address, int arrivals) {
  unsigned char* memory = block.shared.At(address, 8, 8, "mbarrier.init");
  if (arrivals < 1 || arrivals > kMaxBytes) throw Error("mbarrier.init: count out of range");
  MbarrierState& barrier = mbarriers_[address];
  if (!barrier.waiting.empty()) throw Error("mbarrier.init: threads wait on " + Name(address));
  barrier = {};
  barrier.arrivals = barrier.pending = arrivals;
  barrier.init_thread = block.thread();
  barrier.init_time = block.Tick();
  const std::uint64_t cookie = kCookie ^ address;
  std::memcpy(memory, &cookie, sizeof(cookie));
}

void Barriers::CheckFencedInit(Block& block, std::uint32_t address) {
  const MbarrierState& barrier = Find(block, address, "cp.async.bulk");
  const Thread& thread = block.thread(barrier.init_thread);
  if (thread.fenced_init < barrier.init_time && thread.fenced < barrier.init_time) {
    throw Error("cp.async.bulk: " + Name(address) + " has had no fence since its initialisation");
  }
}

void Barriers::Advance(Block& block, MbarrierState& barrier) {
  if (barrier.bytes > kMaxBytes || barrier.bytes < -kMaxBytes) {
    throw Error("an mbarrier's count of bytes is out of range");
  }
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  for (int thread : barrier.waiting) block.Wake(thread);
  barrier.waiting.clear();
}

void Barriers::Arrive(Block& block, std::uint32_t address, std::uint32_t expect_bytes) {
  MbarrierState& barrier = Find(block, address, "mbarrier.arrive");
  if (barrier.pending == 0) throw Error(Name(address) + ": more arrivals than its count");
  barrier.bytes += expect_bytes;
  --barrier.pending;
  Advance(block, barrier);
}

void Barriers::Complete(Block& block, std::uint32_t address, std::uint32_t bytes) {
  MbarrierState& barrier = Find(block, address, "cp.async.bulk");
  barrier.bytes -= bytes;
  Advance(block, barrier);
}

void Barriers::Wait(Block& block, std::uint32_t address, std::uint32_t parity) {
  if (parity > 1) throw Error("mbarrier.try_wait: a parity of " + std::to_string(parity));
  while ((Find(block, address, "mbarrier.try_wait").phase & 1) == parity) {
    mbarriers_[address].waiting.push_back(block.thread());
    block.Suspend({parity == 0 ? "even phase of mbarrier" : "odd phase of mbarrier", address});
  }
}

int SyncThreads(Vote vote, int predicate) {
  Block& block = Here();
  return block.barriers.Sync(block, vote, predicate);
}

void NamedBarrier(int barrier, int threads, bool wait) {
  struct Arguments {
    int barrier, threads;
    bool wait;
  } mine = {barrier, threads, wait};
  Here().Collective(
      "bar.sync or bar.arrive", kAllLanes,
      [](void* const* lanes, std::uint32_t) {
        const auto& first = *static_cast<const Arguments*>(lanes[0]);
        for (int i = 1; i < 32; ++i) {
          const auto& other = *static_cast<const Arguments*>(lanes[i]);
          if (other.barrier != first.barrier || other.threads != first.threads ||
              other.wait != first.wait) {
            throw Error("lanes of a warp come to different barriers");
          }
        }
        Block& block = Here();
        block.barriers.Named(block, first.barrier, first.threads, first.wait);
      },
      &mine);
}

void InitMbarrier(std::uint32_t address, int arrivals) {
  Block& block = Here();
  block.barriers.Init(block, address, arrivals);
}
void FenceMbarrierInit() {
  Block& block = Here();
  block.self().fenced_init = block.Tick();
}
void ArriveMbarrier(std::uint32_t address, std::uint32_t expect_bytes) {
  Block& block = Here();
  block.barriers.Arrive(block, address, expect_bytes);
}
void WaitMbarrier(std::uint32_t address, std::uint32_t parity) {
  Block& block = Here();
  block.barriers.Wait(block, address, parity);
}

}  // namespace flashwok::emulator
