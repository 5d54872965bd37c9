// The barriers of a block: bar.sync's sixteen, and mbarriers in shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "device.h"

namespace flashwok::emulator {

class Block;

struct BlockBarrier {
  int expected = 0;  // threads; 0: nobody has come, -1: all that are alive
  int arrived = 0;
  std::uint64_t generation = 0;
  int ones = 0;         // predicates of who came
  int result_ones = 0;  // of the last time it opened
  int result_of = 0;
  std::vector<int> waiting;
};

struct MbarrierState {
  int arrivals = 0, pending = 0;
  std::int64_t bytes = 0;  // expected less arrived
  std::uint32_t phase = 0;
  int init_thread = 0;
  std::uint64_t init_time = 0;
  std::vector<int> waiting;
};

class Barriers {
 public:
  int Sync(Block& block, Vote vote, int predicate);
  void Named(Block& block, int barrier, int threads, bool wait);  // for 32 threads, by one
  void ThreadLeft(Block& block);

  void Init(Block& block, std::uint32_t address, int arrivals);
  void Arrive(Block& block, std::uint32_t address, std::uint32_t expect_bytes);
  void Wait(Block& block, std::uint32_t address, std::uint32_t parity);
  // Bytes of a copy have come. Checks only: 0.
  void Complete(Block& block, std::uint32_t address, std::uint32_t bytes);
  void CheckFencedInit(Block& block, std::uint32_t address);

 private:
  void Open(Block& block, BlockBarrier& barrier);
  MbarrierState& Find(Block& block, std::uint32_t address, const char* what);
  void Advance(Block& block, MbarrierState& barrier);

  std::array<BlockBarrier, 16> named_;
  std::map<std::uint32_t, MbarrierState> mbarriers_;
};

}  // namespace flashwok::emulator
