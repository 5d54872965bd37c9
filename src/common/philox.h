// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") and the rule
// that turns it into a dropout mask: a function of the element alone, so that forward, backward,
// CPU and GPU agree without storing it.
#pragma once

#include <array>
#include <cstdint>

#include "common/host_device.h"

namespace flashwok {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

FLASHWOK_HOST_DEVICE constexpr PhiloxCounter Philox4x32(PhiloxCounter c, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key[0],
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key[1],
         static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

// Dropout of P. Element (i, j) of head `batch_head` takes word j % 4 of the block
// Philox({j / 4, i, batch_head, low(offset)}, {low(seed), high(seed) ^ high(offset)})
// and is kept when that word is at least `threshold` = floor(p * 2^32).
struct Dropout {
  PhiloxKey key{};
  std::uint32_t offset = 0;
  std::uint32_t threshold = 0;
  float keep_scale = 1.0f;  // 1 / (1 - p), by which a kept P is multiplied

  static Dropout Make(double p, std::uint64_t seed, std::uint64_t offset) {
    return {{static_cast<std::uint32_t>(seed),
             static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)},
            static_cast<std::uint32_t>(offset),
            static_cast<std::uint32_t>(p * 4294967296.0),
            static_cast<float>(1.0 / (1.0 - p))};
  }

  FLASHWOK_HOST_DEVICE constexpr bool active() const { return threshold != 0; }
  FLASHWOK_HOST_DEVICE constexpr PhiloxCounter Block(std::uint32_t batch_head, std::uint32_t i,
                                                     std::uint32_t j_block) const {
    return Philox4x32({j_block, i, batch_head, offset}, key);
  }
  FLASHWOK_HOST_DEVICE constexpr bool Keep(std::uint32_t batch_head, std::uint32_t i,
                                           std::uint32_t j) const {
    const PhiloxCounter words = Block(batch_head, i, j / 4);
    const std::uint32_t low = j % 2 == 0 ? words[0] : words[1];  // no index that a GPU must compute
    const std::uint32_t high = j % 2 == 0 ? words[2] : words[3];
    return (j % 4 < 2 ? low : high) >= threshold;
  }
};

}  // namespace flashwok
