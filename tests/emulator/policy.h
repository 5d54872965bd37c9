// What a seed decides.
#pragma once

#include <cstdint>

namespace flashwok::emulator {

// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t Below(std::uint32_t n) { return static_cast<std::uint32_t>((Next() >> 32) % n); }
  // True in `of_256` cases of 256.
  bool Chance(int of_256) { return static_cast<int>(Next() >> 56) < of_256; }

 private:
  std::uint64_t state_;
};

enum class Turns {
  kInOrder,   // warps in order
  kRandom,    // any warp
  kPriority,  // the first in a random order that can run, as far as it can
};

// Chances of 256.
struct Policy {
  Turns turns = Turns::kInOrder;
  int copy_now = 256;     // a cp.async copies when issued, else when waited for
  int load_now = 256;     // a TMA load copies when issued
  int load_step = 256;    // else: per turn, that one of them does
  int store_now = 256;    // a TMA store reads when issued, else when waited for
  int write_now = 256;    // and writes when it has read, else when waited for
  int product_now = 256;  // a wgmma runs when issued, else when waited for
};

inline Policy DrawPolicy(Random& random) {
  constexpr int kChance[] = {0, 256, 128};
  Policy policy;
  policy.turns = random.Chance(128) ? Turns::kPriority : Turns::kRandom;
  policy.copy_now = kChance[random.Below(3)];
  policy.load_now = kChance[random.Below(3)];
  policy.load_step = random.Chance(128) ? 0 : 40;
  policy.store_now = kChance[random.Below(3)];
  policy.write_now = kChance[random.Below(3)];
  policy.product_now = kChance[random.Below(3)];
  return policy;
}

}  // namespace flashwok::emulator
