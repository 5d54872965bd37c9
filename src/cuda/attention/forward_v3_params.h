// What forward V3 is given beside ForwardParams.
#pragma once

#include "cuda/attention/params.h"
#include "cuda/attention/schedule.h"
#include "cuda/ptx/tensor_map.h"

namespace flashwok::cuda {

// Of 16 rows, those to be computed again (attention/repair_list.cuh).
struct RepairEntry {
  WorkItem work;
  std::int32_t first_row;
  std::uint32_t rows;      // a bit for each that is meant
  std::int64_t before;     // the warp's entry before this one, or -1
  float lse[16];
};

struct ForwardV3Params {
  ForwardParams base;
  Schedule schedule;
  // Work tiles handed out beyond the first of each thread block, starting from 0; null: the blocks
  // take one of every gridDim.x tiles.
  unsigned* counter = nullptr;
  RepairEntry* repairs = nullptr;  // of all rows; absent when no key within the tensors is hidden
  int tile_q = 0;
  bool bulk_store = true;  // O has the inputs' dtype and strides that its tensor map expresses
  ptx::TensorMap q, k, v, o;  // boxes of one swizzle width by 64 rows (q, o) or kTileKV (k, v)
};

}  // namespace flashwok::cuda
