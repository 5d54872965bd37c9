// What forward V3 is given beside ForwardParams.
#pragma once

#include "cuda/attention/params.h"
#include "cuda/attention/schedule.h"
#include "cuda/attention/stamp_log.h"
#include "cuda/ptx/tensor_map.h"

namespace flashwok::cuda {

// Rows to be computed again, as attention/repair_list.cuh keeps them.
struct RepairEntry {
  WorkItem work;
  std::int32_t first_row;  // of 16
  std::uint32_t rows;      // a bit for each that is meant
  std::int32_t before;     // the warp's entry before this one, or -1
  float lse[16];
};
struct RepairList {
  unsigned* count = nullptr;  // starts from 0
  RepairEntry* list = nullptr;
};

struct ForwardV3Params {
  ForwardParams base;
  Schedule schedule;
  // Work tiles handed out beyond the first of each thread block, starting from 0; null: every block
  // takes each gridDim.x-th tile.
  unsigned* counter = nullptr;
  RepairList repairs;  // absent when no key within the tensors is hidden
  int tile_q = 0;
  bool bulk_store = true;  // O has the inputs' dtype and strides that its tensor map expresses
  ptx::TensorMap q, k, v, o;  // boxes of one swizzle width by 64 rows (q, o) or kTileKV (k, v)
  StampLog* stamps = nullptr;  // for a kernel built with time stamps, or null
};

}  // namespace flashwok::cuda
