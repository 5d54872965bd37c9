// Rows of V3 that a hidden NaN may have come into (repair.cuh): put down when they are found, and
// computed again when a warp has no more work, so that the loop keeps its registers.
#pragma once

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/repair.cuh"

namespace flashwok::cuda {

// By one warp, of 16 of its rows, whose entry has their lse already; `last` is the number of the
// warp's latest entry, in shared memory.
__device__ __forceinline__ void AddRepair(RepairEntry* repairs, std::int64_t number,
                                          const WorkItem& work, int first_row, unsigned rows,
                                          std::int64_t& last) {
  if (LaneIndex() == 0) {
    RepairEntry& entry = repairs[number];
    entry.work = work;
    entry.first_row = first_row;
    entry.rows = rows;
    entry.before = last;
    last = number;
  }
}

// The entries of this warp, from the `last`; what it stored before is in memory.
template <DType kType>
__device__ __forceinline__ void Repair(const ForwardParams& p, const RepairEntry* repairs,
                                       std::int64_t last) {
  __syncwarp();
  for (std::int64_t n = last; n >= 0; n = repairs[n].before) {
    const RepairEntry& entry = repairs[n];
    const WorkItem work = entry.work;
    const Sequence sequence = p.At(work.batch);
    for (unsigned rows = entry.rows; rows != 0; rows &= rows - 1) {
      const int r = __ffs(static_cast<int>(rows)) - 1;
      const std::int64_t i = entry.first_row + r - sequence.q_begin;
      if (i < 0) continue;
      char* row = p.o.Row(work.batch, sequence.q_begin + i, work.head);
      RepairRow<kType>(p, sequence, work.batch, work.head, i, KeyRange{0, sequence.seqlen_k},
                       entry.lse[r], [&](int col, float value) {
                         StoreElement<kType>(row, p.o.dtype, col, value);
                       });
    }
  }
}

}  // namespace flashwok::cuda
