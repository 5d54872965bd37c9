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

  // Those of `rows` rows from `row`; none ahead of row 0.
  __device__ __forceinline__ static KeyTiles Of(const IntervalMask& mask, std::int64_t row, int rows,
                                                int tile_kv) {
    if (row + rows <= 0) return {};
    const TileRange range = VisitedTiles(mask, row > 0 ? row : 0, row + rows, tile_kv);
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
  int absent;           // rows of the block ahead of the sequence's first
  int q_row;            // its first, in the tensors
  int keys;             // of the sequence
  int stale_keys;       // rows of the first K and V beyond them, unless the copy engine clips there
  int tiles;            // that one of its rows visits
  int end;              // the one behind the last of them
  int k_end;            // its first row in k and v
};

template <int kConsumers>
struct WorkPlan {
  BlockPlan block;
  RowsPlan consumers[kConsumers];
};

// To 32 bits with room for 64 rows; what is clipped lies outside of every sequence.
__device__ __forceinline__ int ClipKey(std::int64_t key) {
  constexpr std::int64_t kHigh = INT32_MAX - 64;
  return static_cast<int>(key < -64 ? -64 : key > kHigh ? kHigh : key);
}

// Writes a plan, by a whole warp: lane c that of consumer c's rows, the last lane that of the
// block. `before`: the plan of the work ahead of it, if there is one.
template <int kConsumers>
__device__ __forceinline__ void MakePlan(const ForwardV3Params& p, const WorkItem& work,
                                         std::uint32_t index, int tile_kv,
                                         const WorkPlan<kConsumers>* before,
                                         WorkPlan<kConsumers>& plan) {
  constexpr int kLast = 31, kTileQ = 64 * kConsumers;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == kLast) plan.block.work = work;
  if (work.valid()) {
    const Sequence sequence = p.base.At(work.batch);
    const std::int64_t first = FirstRow(sequence.seqlen_q, kTileQ, work.q_tile);
    const std::int64_t row = first + (lane < kConsumers ? 64 * lane : 0);
    const KeyTiles tiles =
        KeyTiles::Of(sequence.mask, row, lane < kConsumers ? 64 : kTileQ, tile_kv);
    const int all_begin = __shfl_sync(0xFFFFFFFFu, tiles.begin, kLast);
    const int all_end = __shfl_sync(0xFFFFFFFFu, tiles.end, kLast);
    const int all = all_begin < all_end ? all_end - all_begin : 0;
    if (lane < kConsumers) {
      RowsPlan& rows = plan.consumers[lane];
      rows.tiles = tiles;
      rows.before = tiles.empty() ? all : all_end - tiles.end;
      rows.after = tiles.empty() ? 0 : tiles.begin - all_begin;
      rows.joins = !tiles.empty() && rows.before == 0 && before != nullptr &&
                   before->consumers[lane].after == 0;
      const std::int64_t center = row + sequence.mask.diagonal;
      rows.seen_begin = ClipKey(center - sequence.mask.left);
      rows.seen_end = ClipKey(center + sequence.mask.right + 1);
    }
    if (lane == kLast) {
      BlockPlan& block = plan.block;
      block.index = index;
      block.absent = first < 0 ? static_cast<int>(-first) : 0;
      block.q_row = static_cast<int>(sequence.q_begin + first);
      block.keys = static_cast<int>(sequence.seqlen_k);
      const bool clipped = !p.base.cu_seqlens_k && !p.base.seqused_k;
      const int past_end = all_end * tile_kv - block.keys;
      block.stale_keys = !clipped && past_end > 0 ? past_end : 0;
      block.tiles = all;
      block.end = all_end;
      block.k_end = static_cast<int>(sequence.k_begin) + all_end * tile_kv;
    }
  } else if (lane < kConsumers) {
    plan.consumers[lane].joins = 0;
  }
  __syncwarp();
}

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
  __device__ __forceinline__ void Step() {
    if (p_.counter.word == nullptr) {
      index_ += gridDim.x;
      return;
    }
    index_ = gridDim.x + Draw();
  }

  // Every block's last draw finds no more work: the draws of a launch are total().
  __device__ __forceinline__ std::uint32_t Draw() {
    unsigned drawn = 0;
    if (threadIdx.x % 32 == 0) {
      unsigned long long* word = p_.counter.word;
      const auto none = static_cast<unsigned long long>(p_.counter.launch) << 32;
      if (!counts_) {
        const unsigned long long seen = atomicAdd(word, 0ull);
        if (seen >> 32 != p_.counter.launch) (void)atomicCAS(word, seen, none);
      }
      drawn = static_cast<unsigned>(atomicAdd(word, 1ull));
      if (drawn + 1 == p_.schedule.total()) (void)atomicExch(word, 0ull);
    }
    __syncwarp();
    counts_ = true;
    return Uniform(drawn);
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
  bool counts_ = false;  // the word is known to be this launch's
};

}  // namespace flashwok::cuda
