// A row of V2's table as types and constants.
#pragma once

#include "cuda/config/forward_v2.h"
#include "cuda/tile/shared_tile.cuh"
#include "flashwok/tensor.h"

namespace flashwok::cuda {

// kPlain: nothing but an interval mask between the product and the softmax, rows aligned to 16
// bytes, and no KV tile on two pages. All else is decided at run time.
template <DType kInput, ForwardV2Config kConfig, bool kPlainScores>
struct ForwardV2Traits {
  static constexpr DType kType = kInput;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kSharedKib = kConfig.shared_kib;
  static constexpr bool kPlain = kPlainScores;
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kWarps = kPlain ? kConfig.warps : kConfig.full_warps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kResident = kPlain ? kConfig.blocks : kConfig.full_blocks;  // on an SM
  static constexpr int kRows = kTileQ / kWarps;  // of a warp
  static constexpr int kBlocks = kRows / 16;
  static_assert(kTileQ % (16 * kWarps) == 0);
  using TileQ = SharedTile<kTileQ, kHeadDim>;
  using WarpQ = SharedTile<kRows, kHeadDim>;
  using TileKV = SharedTile<kTileKV, kHeadDim>;
};

}  // namespace flashwok::cuda
