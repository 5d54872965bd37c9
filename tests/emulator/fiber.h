// Threads of execution that hand over to each other by hand: a stack and where it stopped.
#pragma once

#include <cstddef>
#include <vector>

namespace flashwok::emulator {

struct Fiber {
  void* context = nullptr;  // its stack pointer while it does not run
  unsigned char* stack = nullptr;
  void* sanitizer = nullptr;
};

// Stacks are kept for the next block; below each lies a page that faults.
class StackPool {
 public:
  ~StackPool();
  unsigned char* Take();
  void Give(unsigned char* stack) { free_.push_back(stack); }

 private:
  std::vector<unsigned char*> free_, all_;
};

// `entry` runs at the first Resume and must not return: it ends in Leave(fiber, true).
void Prepare(Fiber& fiber, unsigned char* stack, void (*entry)());
void Resume(Fiber& fiber);               // from outside of fibers, until it leaves
void Enter();                            // the first call of `entry`
void Leave(Fiber& fiber, bool forever);  // from within

}  // namespace flashwok::emulator
