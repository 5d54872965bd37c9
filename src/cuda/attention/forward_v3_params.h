// What forward V3 is given beside ForwardParams.
#pragma once

#include "cuda/attention/params.h"
#include "cuda/attention/schedule.h"
#include "cuda/attention/stamp_log.h"
#include "cuda/ptx/tensor_map.h"

namespace flashwok::cuda {

// Of 16 rows, those to be computed again (attention/repair_list.cuh).
struct RepairEntry {
  WorkItem work;
  std::int32_t first_row;  // in the tensors
  std::uint32_t rows;      // a bit for each that is meant
  std::int64_t before;     // the warp's entry before this one, or -1
  float lse[16];
};

// Hands out indices, each once. The word may hold anything when a kernel starts: a number drawn for
// the launch in its high half says that the low half counts; the last draw of all leaves 0, so that
// the launch can be replayed from a graph.
struct WorkCounter {
  unsigned long long* word = nullptr;
  std::uint32_t launch = 0;  // not 0
};

struct ForwardV3Params {
  ForwardParams base;
  Schedule schedule;
  WorkCounter counter;  // absent: the blocks take one of every gridDim.x tiles
  RepairEntry* repairs = nullptr;  // of all rows; absent when no key within the tensors is hidden
  int tile_q = 0;
  bool bulk_store = true;  // O has the inputs' dtype and strides that its tensor map expresses
  ptx::TensorMap q, k, v, o;  // boxes of one swizzle width by 64 rows (q, o) or kTileKV (k, v)
  StampLog* stamps = nullptr;  // for a kernel built with time stamps, or null
};

}  // namespace flashwok::cuda
