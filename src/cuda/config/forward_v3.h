// Tuning of forward V3, as data: one row a pair of head dims.
#pragma once

#include <cstdint>

namespace flashwok::cuda {

struct ForwardV3Config {
  int head_dim, head_dim_v;  // padded to
  int consumers;             // warpgroups of 64 rows
  int tile_kv;
  int stages;         // of K and of V
  int q_stages;       // 2: the next Q comes under this tile's end
  bool ping_pong;     // consumers take turns at the tensor core
  // Keys that one query can see, up to which the row is meant, when all queries see all keys and
  // when some keys are hidden; kAnyKeys, kNoKeys: without limit, and not at all.
  int max_keys = 0, max_keys_hidden = 0;

  constexpr int tile_q() const { return 64 * consumers; }
};

inline constexpr int kAnyKeys = 0, kNoKeys = -1;
inline constexpr ForwardV3Config kForwardV3Configs[] = {
    // Narrow: few keys beside those that a query sees.
    {64, 64, 4, 64, 10, 1, false, kNoKeys, 512},
    {64, 64, 4, 64, 8, 2, false, 4096, 8192},  // short: 256 rows leave no part of a tile empty
    {64, 64, 3, 128, 4, 2, false},
    {96, 96, 3, 96, 2, 2, false},
    {128, 128, 3, 64, 5, 1, false, kNoKeys, 512},
    {128, 128, 3, 64, 4, 2, false, kNoKeys, 1024},
    {128, 128, 2, 128, 3, 1, true, 1024, kNoKeys},
    {128, 128, 3, 80, 4, 1, false},
    {192, 128, 2, 128, 2, 1, true},
    {192, 192, 2, 96, 2, 1, true},
    {256, 256, 2, 64, 2, 1, true, 4096, 4096},
    {256, 256, 2, 80, 2, 1, true},
};
inline constexpr int kForwardV3Rows = sizeof(kForwardV3Configs) / sizeof(kForwardV3Configs[0]);

// With softcap, whose tanh wants registers: fewer consumers share them.
constexpr ForwardV3Config WithSoftcap(ForwardV3Config config) {
  if (config.consumers > 2) {
    config.consumers = 2;
    config.ping_pong = true;
  }
  return config;
}

// The first row that holds them. `keys`: that one query can see. The choice does not look at the
// number of queries, so that a row of O has the same bits whichever others are asked for. -1: none
// does.
constexpr int ForwardV3Row(std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t keys,
                           bool hides) {
  int row = 0;
  for (const ForwardV3Config& config : kForwardV3Configs) {
    const int max_keys = hides ? config.max_keys_hidden : config.max_keys;
    const bool meant = max_keys == kAnyKeys || keys <= max_keys;
    if (meant && head_dim <= config.head_dim && head_dim_v <= config.head_dim_v) return row;
    ++row;
  }
  return -1;
}

}  // namespace flashwok::cuda
