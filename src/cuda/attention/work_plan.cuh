// What is known of a work tile before it is computed: found once, by the producer, while it has
// nothing to load, and read by the consumers from shared memory.
#pragma once

#include "common/tile_range.h"
#include "cuda/attention/find_sequence.cuh"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/forward_v3_pipeline.cuh"

namespace flashwok::cuda {

// KV tiles [begin, end), of which [full_begin, full_end) need no mask: TileRange in 32 bits, which
// tile numbers fit.
struct KeyTiles {
  int begin = 0, end = 0, full_begin = 0, full_end = 0;

  // Those of `rows` rows from `row`; none past the last row.
  __device__ __forceinline__ static KeyTiles Of(const Sequence& sequence, std::int64_t row,
                                                int rows, int tile_kv) {
    if (row >= sequence.seqlen_q) return {};
    const std::int64_t end = row + rows < sequence.seqlen_q ? row + rows : sequence.seqlen_q;
    const TileRange range = VisitedTiles(sequence.mask, row, end, tile_kv);
    return {static_cast<int>(range.begin), static_cast<int>(range.end),
            static_cast<int>(range.full_begin), static_cast<int>(range.full_end)};
  }
  __device__ __forceinline__ bool empty() const { return begin >= end; }
  __device__ __forceinline__ bool NeedsMask(int j) const { return j < full_begin || j >= full_end; }
  __device__ __forceinline__ bool AnyMask() const { return begin < full_begin || full_end < end; }
};

__device__ __forceinline__ KeyTiles Uniform(const KeyTiles& tiles) {
  return {Uniform(tiles.begin), Uniform(tiles.end), Uniform(tiles.full_begin),
          Uniform(tiles.full_end)};
}

// Of a consumer's 64 rows.
struct RowsPlan {
  KeyTiles tiles;
  int before, after;  // tiles that the block visits ahead of these and behind them
  int joins;          // whether its tiles follow those of the work before without a gap
  // The keys that the first row sees, not yet clipped to the sequence; each row after it sees those
  // one further.
  int seen_begin, seen_end;
};

// Of all rows of a thread block.
struct BlockPlan {
  WorkItem work;
  std::uint32_t index;  // in the order of work
  int rows;             // that exist, of the block's
  int q_row;            // its first, in the tensors
  int keys;             // of the sequence
  int stale_keys;       // rows of the first K and V beyond them, unless the copy engine clips there
};

template <int kConsumers>
struct WorkPlan {
  BlockPlan block;
  RowsPlan consumers[kConsumers];
};

// Made by a whole warp: lane c makes the part of consumer c.
struct PlanDraft {
  BlockPlan block;
  RowsPlan part;
  int k_end;   // the row behind the last tile in k and v, alike in all lanes
  int tiles;   // the block's, alike in all lanes

  __device__ __forceinline__ PlanDraft(const ForwardV3Params& p, const WorkItem& work,
                                       std::uint32_t index, int consumers, int tile_kv) {
    block.work = work;
    if (!work.valid()) return;
    constexpr std::int64_t kRows = 64;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const Sequence sequence = p.base.At(work.batch);
    const std::int64_t first = std::int64_t{work.q_tile} * p.tile_q;
    const std::int64_t row = first + (lane < consumers ? kRows * lane : 0);
    // The lanes beyond the consumers look at the whole block.
    part.tiles = KeyTiles::Of(sequence, row, lane < consumers ? kRows : p.tile_q, tile_kv);
    const int all_begin = __shfl_sync(0xFFFFFFFFu, part.tiles.begin, 31);
    const int all_end = __shfl_sync(0xFFFFFFFFu, part.tiles.end, 31);
    tiles = all_begin < all_end ? all_end - all_begin : 0;
    k_end = static_cast<int>(sequence.k_begin) + all_end * tile_kv;
    part.before = part.tiles.empty() ? tiles : all_end - part.tiles.end;
    part.after = part.tiles.empty() ? 0 : part.tiles.begin - all_begin;
    const std::int64_t center = row + sequence.mask.diagonal;
    part.seen_begin = Clip(center - sequence.mask.left);
    part.seen_end = Clip(center + sequence.mask.right + 1);
    block.index = index;
    block.rows = static_cast<int>(sequence.seqlen_q - first);
    block.q_row = static_cast<int>(sequence.q_begin + first);
    block.keys = static_cast<int>(sequence.seqlen_k);
    const bool clipped = !p.base.cu_seqlens_k && !p.base.seqused_k;
    const int past_end = all_end * tile_kv - block.keys;
    block.stale_keys = !clipped && past_end > 0 ? past_end : 0;
  }

  // `previous`: the plan of the work before, if there was one.
  template <int kConsumers>
  __device__ __forceinline__ void Write(WorkPlan<kConsumers>& plan,
                                        const WorkPlan<kConsumers>& previous, bool any) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane == 0) plan.block = block;
    if (lane < kConsumers) {
      plan.consumers[lane] = part;
      plan.consumers[lane].joins = any && block.work.valid() && !part.tiles.empty() &&
                                   part.before == 0 && previous.consumers[lane].after == 0;
    }
  }

 private:
  // To 32 bits with room for 64 rows; what is clipped lies outside of every sequence.
  __device__ __forceinline__ static int Clip(std::int64_t key) {
    constexpr std::int64_t kHigh = INT32_MAX - 64;
    return static_cast<int>(key < -64 ? -64 : key > kHigh ? kHigh : key);
  }
};

// Hands out work tiles to a thread block; used by one whole warp.
class WorkSource {
 public:
  __device__ __forceinline__ explicit WorkSource(const ForwardV3Params& p) : p_(p) {}

  __device__ __forceinline__ WorkItem First() {
    index_ = blockIdx.x;
    return Find();
  }
  __device__ __forceinline__ WorkItem Next() {
    Step();
    return Find();
  }
  __device__ __forceinline__ std::uint32_t index() const { return index_; }

 private:
  // Without a counter rounds go to and fro, so that the block with the longest tile of one gets
  // the shortest of the next.
  __device__ __forceinline__ void Step() {
    if (p_.counter == nullptr) {
      ++round_;
      index_ = round_ * gridDim.x + (round_ % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
      return;
    }
    unsigned taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(p_.counter, 1u);
    index_ = gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0);
  }

  // The work at index_, or with varlen, where slots can be empty, the next that there is.
  __device__ __forceinline__ WorkItem Find() {
    for (; index_ < p_.schedule.total(); Step()) {
      const Schedule::Place place = p_.schedule.At(index_);
      if (!p_.base.cu_seqlens_q) {
        const auto num_heads = static_cast<std::uint32_t>(p_.base.num_heads);
        return {static_cast<int>(place.head / num_heads), static_cast<int>(place.head % num_heads),
                static_cast<int>(place.q_tile)};
      }
      auto q_tile = static_cast<int>(place.q_tile);
      const int batch = FindSequence(p_.base, p_.tile_q, q_tile);
      if (batch >= 0) return {batch, static_cast<int>(place.head), q_tile};
    }
    return {};
  }

  const ForwardV3Params& p_;
  std::uint32_t index_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace flashwok::cuda
