// Where the Q tiles of varlen sequences lie: the lengths are known on the device alone.
#pragma once

#include "cuda/attention/params.h"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Tile number `slot` of the sequences' Q tiles one after the other: each lane counts the tiles of a
// sequence, 32 at a time. Returns the sequence, or -1, and leaves in `slot` the tile within it. By
// one warp.
__device__ __forceinline__ int FindSequence(const ForwardParams& params, int tile_q, int& slot) {
  const int lane = LaneIndex();
  const auto batch = static_cast<int>(params.batch);
  for (int first = 0; first < batch; first += 32) {
    int tiles = 0;
    if (first + lane < batch) {
      tiles = (static_cast<int>(params.At(first + lane).seqlen_q) + tile_q - 1) / tile_q;
    }
    int sum = tiles;  // of the lanes up to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += before;
    }
    const unsigned past = __ballot_sync(kAllLanes, slot < sum);
    if (past != 0) {
      const int found = __ffs(static_cast<int>(past)) - 1;
      slot -= __shfl_sync(kAllLanes, sum - tiles, found);
      return first + found;
    }
    slot -= __shfl_sync(kAllLanes, sum, 31);
  }
  return -1;
}

}  // namespace flashwok::cuda
