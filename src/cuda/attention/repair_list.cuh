// Rows of V3 that a hidden NaN may have come into (repair.cuh): put down when they are found, and
// computed again when a warp has no more work, so that the loop keeps its registers.
#pragma once

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/repair.cuh"

namespace flashwok::cuda {

// By one warp, of 16 of its rows; `last` is the number of its latest entry, in shared memory.
__device__ __forceinline__ void AddRepair(const RepairList& repairs, const WorkItem& work,
                                          int first_row, unsigned rows, float lse0, float lse1,
                                          int& last) {
  if (LaneIndex() == 0) {
    const unsigned number = atomicAdd(repairs.count, 1u);
    RepairEntry& entry = repairs.list[number];
    entry.work = work;
    entry.first_row = first_row;
    entry.rows = rows;
    entry.before = last;
    last = static_cast<int>(number);
  }
  __syncwarp();
  if (FragmentCol() == 0) {
    repairs.list[last].lse[FragmentRow()] = lse0;
    repairs.list[last].lse[FragmentRow() + 8] = lse1;
  }
}

// Those rows of O that are not finite.
template <int kCount, class Softmax>
__device__ __forceinline__ void NoteRepairs(const RepairList& repairs, const WorkItem& work,
                                            int first_row, const float (&O)[kCount],
                                            const Softmax& softmax, int& last) {
  const unsigned bad = RowsNotFinite(O);
  if (bad != 0) {
    AddRepair(repairs, work, first_row, bad, softmax.Lse(0), softmax.Lse(1), last);
  }
}

// The entries of this warp, from the `last`; what it stored before is in memory.
template <DType kType>
__device__ __forceinline__ void Repair(const ForwardParams& p, const RepairList& repairs,
                                       int last) {
  __syncwarp();
  for (int n = last; n >= 0; n = repairs.list[n].before) {
    const RepairEntry& entry = repairs.list[n];
    const WorkItem work = entry.work;
    const Sequence sequence = p.At(work.batch);
    for (unsigned rows = entry.rows; rows != 0; rows &= rows - 1) {
      const int r = __ffs(static_cast<int>(rows)) - 1;
      const std::int64_t i = entry.first_row + r;
      if (i >= sequence.seqlen_q) break;
      char* row = p.o.Row(work.batch, sequence.q_begin + i, work.head);
      RepairRow<kType>(p, sequence, work.batch, work.head, i, KeyRange{0, sequence.seqlen_k},
                       entry.lse[r], [&](int col, float value) {
                         StoreElement<kType>(row, p.o.dtype, col, value);
                       });
    }
  }
}

}  // namespace flashwok::cuda
