// The tiles of the V2 forward kernel, rows for each bucket of head_dim: the larger of head_dim and
// head_dim_v, rounded up to the next one here; and for what shared memory a thread block can have.
#pragma once

#include <cstdint>
#include <iterator>

namespace flashwok::cuda {

struct ForwardV2Config {
  int head_dim;
  int shared_kib;  // that the device must give a thread block
  int tile_q, tile_kv;
  int warps, blocks;            // blocks: that share an SM; bounds the registers
  int full_warps, full_blocks;  // the same, where the score stage needs registers too
};

// 227 KiB: sm_90; 163: sm_80; 99: sm_86 and sm_89. 32 rows a warp, so that a fragment of K or V
// serves two products, as long as O leaves registers for S; at 192 and 256 O is too wide and a warp
// has 16. Two tiles each of K and V are in shared memory.
inline constexpr ForwardV2Config kForwardV2Configs[] = {
    {32, 99, 128, 64, 4, 3, 8, 1},
    {64, 227, 128, 64, 4, 3, 8, 1},
    {64, 99, 128, 64, 4, 2, 8, 1},  // with three, sm_80's code spills
    {96, 99, 128, 64, 4, 2, 8, 1},
    {128, 227, 128, 64, 4, 2, 8, 1},
    {128, 99, 128, 64, 8, 1, 8, 1},
    {192, 163, 128, 64, 8, 1, 8, 1},
    {192, 99, 128, 32, 8, 1, 8, 1},
    {256, 227, 128, 64, 8, 1, 8, 1},
    {256, 163, 128, 32, 8, 1, 8, 1},
    {256, 99, 64, 32, 4, 1, 4, 1},
};
inline constexpr int kForwardV2Rows = std::size(kForwardV2Configs);

// The first row for a head_dim on a device, -1 when there is none.
constexpr int ForwardV2Row(std::int64_t head_dim, int shared_kib) {
  for (int row = 0; row < kForwardV2Rows; ++row) {
    const ForwardV2Config& config = kForwardV2Configs[row];
    if (head_dim <= config.head_dim && config.shared_kib <= shared_kib) return row;
  }
  return -1;
}

}  // namespace flashwok::cuda
