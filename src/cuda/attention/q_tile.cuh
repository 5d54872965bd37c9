// The work of a thread block of V2: which Q tiles, over which keys, in which order; found on the
// device, where alone the lengths of varlen sequences are known.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/tile_range.h"
#include "cuda/attention/find_sequence.cuh"
#include "cuda/attention/params.h"
#include "cuda/attention/schedule.h"

namespace flashwok::cuda {

// How the Q tiles lie in the one-dimensional grid, pieces of the keys side by side. Of varlen
// sequences there are at least as many places as tiles.
inline Schedule MakeQTileSchedule(const ForwardParams& params, std::int64_t tile_q) {
  const bool varlen = static_cast<bool>(params.cu_seqlens_q);
  const std::int64_t heads = varlen ? params.num_heads : params.batch * params.num_heads;
  const std::int64_t per_head = varlen ? Schedule::Slots(params.total_q, tile_q, params.batch)
                                       : CeilDiv(params.total_q, tile_q);
  if (params.total_q == 0 || heads * per_head * params.num_splits >= Schedule::kMaxTotal) return {};
  const std::int64_t kv_bytes = params.total_k * (params.head_dim + params.head_dim_v) * 2;
  return {static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(per_head),
          static_cast<std::uint32_t>(Schedule::Section(heads, params.group, kv_bytes))};
}

// The KV tiles that a Q tile visits, in the order in which it does: those that need masking first,
// then the others, each from right to left.
struct TileWalk {
  int masked = 0;  // tiles of the first kind
  int count = 0;
  int right = 0;  // masked ones at the right end
  int end = 0, full_begin = 0, full_end = 0;

  // Without any, one tile that lies behind the last key.
  __device__ static TileWalk Make(const TileRange& range, std::int64_t tiles) {
    TileWalk walk;
    if (range.empty()) {
      walk.masked = walk.count = walk.right = 1;
      walk.end = static_cast<int>(tiles) + 1;
      return walk;
    }
    walk.end = static_cast<int>(range.end);
    walk.full_begin = static_cast<int>(range.full_begin);
    walk.full_end = static_cast<int>(range.full_end);
    walk.count = static_cast<int>(range.end - range.begin);
    walk.masked = walk.count - (walk.full_end - walk.full_begin);
    walk.right = walk.end - walk.full_end;
    return walk;
  }
  __device__ __forceinline__ int At(int n) const {
    const int last = n < right ? end : n < masked ? full_begin + right : full_end + masked;
    return last - 1 - n;
  }
};

// A piece of work: rows of Q and the keys that they visit. It stays in shared memory: the registers
// are for S and O.
struct QTile {
  bool exists = false;
  int rows = 0;
  int split = 0;
  std::int64_t batch = 0, head = 0, head_kv = 0;
  std::int64_t row_begin = 0;  // of the sequence
  Sequence sequence;
  TileWalk walk;
  const char* k = nullptr;  // key 0, unless paged
  const char* v = nullptr;
};

// The part of `range` that piece `split` of the keys holds.
__device__ inline TileRange PieceOf(TileRange range, std::int64_t tiles, int split) {
  const auto clamp = [](std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
  };
  range.begin = std::max(range.begin, split * tiles);
  range.end = std::min(range.end, (split + 1) * tiles);
  if (range.empty()) return {};
  range.full_begin = clamp(range.full_begin, range.begin, range.end);
  range.full_end = clamp(range.full_end, range.full_begin, range.end);
  if (range.full_end == range.full_begin) range.full_begin = range.full_end = range.begin;
  return range;
}

// The walk of a Q tile over its keys, or over its piece of them.
__device__ inline void PlanWalk(const ForwardParams& params, int tile_kv, QTile& tile) {
  const Sequence& sequence = tile.sequence;
  TileRange range =
      VisitedTiles(sequence.mask, tile.row_begin, tile.row_begin + tile.rows, tile_kv);
  if (params.num_splits > 1) range = PieceOf(range, params.chunk / tile_kv, tile.split);
  tile.walk = TileWalk::Make(range, CeilDiv(sequence.seqlen_k, tile_kv));
  tile.head_kv = static_cast<std::uint32_t>(tile.head) / static_cast<std::uint32_t>(params.group);
  tile.k = params.k.Row(tile.batch, sequence.k_begin, tile.head_kv);
  tile.v = params.v.Row(tile.batch, sequence.k_begin, tile.head_kv);
}

// Number `index` of the schedule's Q tiles, or of pieces of them. By one warp.
__device__ inline QTile FindQTile(const ForwardParams& params, const Schedule& schedule,
                                  std::uint32_t index, int tile_q, int tile_kv) {
  QTile tile;
  const auto splits = static_cast<std::uint32_t>(params.num_splits);
  const std::uint32_t whole = splits == 1 ? index : index / splits;
  const Schedule::Place place = schedule.At(whole);
  tile.split = static_cast<int>(index - whole * splits);
  auto q_tile = static_cast<int>(place.q_tile);
  if (params.cu_seqlens_q) {
    tile.head = place.head;
    tile.batch = FindSequence(params, tile_q, q_tile);
    if (tile.batch < 0) return tile;
  } else {
    const auto num_heads = static_cast<std::uint32_t>(params.num_heads);
    tile.head = place.head % num_heads;
    tile.batch = place.head / num_heads;
  }
  tile.sequence = params.At(tile.batch);
  tile.row_begin = std::int64_t{q_tile} * tile_q;
  tile.rows =
      static_cast<int>(std::min<std::int64_t>(tile.sequence.seqlen_q - tile.row_begin, tile_q));
  tile.exists = true;
  PlanWalk(params, tile_kv, tile);
  return tile;
}

// The next work of this thread block. Rounds go to and fro over the grid, so that the block with
// the longest tile of one gets the shortest of the next. By one warp.
__device__ inline QTile NextQTile(const ForwardParams& params, const Schedule& schedule,
                                  std::uint32_t& round, int tile_q, int tile_kv) {
  const std::uint32_t total = schedule.total() * static_cast<std::uint32_t>(params.num_splits);
  for (;; ++round) {
    const std::uint32_t place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const std::uint32_t index = round * gridDim.x + place;
    if (index >= total) return {};
    const QTile tile = FindQTile(params, schedule, index, tile_q, tile_kv);
    if (!tile.exists) continue;
    ++round;
    return tile;
  }
}

}  // namespace flashwok::cuda
