// How workers share the Q tiles of V2 and V3. The keys are cut into chunks of a fixed length; each
// chunk makes a partial result of its own, and these are merged in the order of the keys. One
// worker may take all chunks of a tile, or several workers a chunk each: the bits are the same.
// Per-target guard.
#if defined(FLASHWOK_CPU_SPLIT_KV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_SPLIT_KV_INL_H_
#undef FLASHWOK_CPU_SPLIT_KV_INL_H_
#else
#define FLASHWOK_CPU_SPLIT_KV_INL_H_
#endif

#include "cpu/forward-inl.h"
#include "cpu/parallel_for.h"
#include "cpu/split_kv.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Chunk number c of a tile range, in KV tiles; empty when the range does not reach it.
HWY_INLINE TileRange ChunkOf(const TileRange& range, std::int64_t c, const Launch& launch) {
  const std::int64_t tiles = launch.chunk / launch.tile_kv;
  TileRange part = range;
  part.begin = std::max(range.begin, c * tiles);
  part.end = std::min(range.end, (c + 1) * tiles);
  return part;
}

// Joins the part of a later chunk to the state of the tile, or becomes it.
HWY_INLINE void Join(bool first, ForwardWorktop& top, const QTile& tile, const Layout& layout) {
  if (first) {
    std::swap(top.O, top.O_part);
    std::swap(top.state, top.state_part);
  } else {
    MergeInto(top.state, top.O, top.state_part, top.O_part, tile.rows,
              RoundUp(layout.head_dim_v, kLanes));
  }
}

template <typename Verbs, typename Chunk, typename Worktop>
void RunTile(const Layout& layout, const ForwardOutput& output, const Launch& launch,
             const Chunk& chunk, const Tracer& tracer, const QTile& tile, Worktop& top) {
  const Verbs verbs(layout, launch, tracer, top);
  const TileRange range = verbs.Range(tile);
  verbs.TraceSkips(tile, range);
  verbs.LoadQ(tile);
  bool first = true;
  const std::int64_t tiles = launch.chunk / launch.tile_kv;
  for (std::int64_t c = range.begin / tiles; c * tiles < range.end; ++c) {
    const TileRange part = ChunkOf(range, c, launch);
    chunk(verbs, top, tile, range, part.begin, part.end, top.state_part, top.O_part);
    Join(first, top, tile, layout);
    first = false;
  }
  if (first) {  // no row of this tile sees a key
    ResetState(top.state, tile.rows);
    ZeroTile(top.O, tile.rows, layout.head_dim_v);
  }
  verbs.Finalize(tile, RowView::Make(output.o), ScalarView::Make(output.lse), top.O, top.state);
}

// One chunk of one tile, its result to slow memory.
template <typename Verbs, typename Chunk, typename Worktop>
void RunPart(const Layout& layout, const Launch& launch, const Chunk& chunk, const Tracer& tracer,
             const QTile& tile, std::int64_t c, std::int64_t slot, const Partials& partials,
             Worktop& top) {
  const Verbs verbs(layout, launch, tracer, top);
  const TileRange range = verbs.Range(tile);
  if (c == 0) verbs.TraceSkips(tile, range);
  const TileRange part = ChunkOf(range, c, launch);
  if (part.empty()) return;
  verbs.LoadQ(tile);
  chunk(verbs, top, tile, range, part.begin, part.end, top.state_part, top.O_part);
  const auto span =
      tracer.Store(Role::kPartial, tile.rows * (layout.head_dim_v + 2) * 4, Verbs::Place(tile, -1));
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    std::copy_n(top.O_part + r * kTileLd, layout.head_dim_v,
                partials.O(slot) + r * layout.head_dim_v);
  }
  std::copy_n(top.state_part.row_max, tile.rows, partials.row_max(slot));
  std::copy_n(top.state_part.row_sum, tile.rows, partials.row_sum(slot));
}

template <typename Verbs, typename Worktop>
void JoinParts(const Layout& layout, const ForwardOutput& output, const Launch& launch,
               const Tracer& tracer, const QTile& tile, std::int64_t slot, const Partials& partials,
               Worktop& top) {
  const Verbs verbs(layout, launch, tracer, top);
  const TileRange range = verbs.Range(tile);
  ResetState(top.state, tile.rows);
  ZeroTile(top.O, tile.rows, layout.head_dim_v);
  bool first = true;
  const std::int64_t tiles = launch.chunk / launch.tile_kv;
  for (std::int64_t c = range.begin / tiles; c * tiles < range.end; ++c, first = false) {
    const auto span = tracer.Load(Role::kPartial, tile.rows * (layout.head_dim_v + 2) * 4,
                                  Verbs::Place(tile, -1));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      LoadRow(partials.O(slot + c) + r * layout.head_dim_v, DType::kFloat32, layout.head_dim_v,
              RoundUp(layout.head_dim_v, kLanes), 1.0f, top.O_part + r * kTileLd);
    }
    std::copy_n(partials.row_max(slot + c), tile.rows, top.state_part.row_max);
    std::copy_n(partials.row_sum(slot + c), tile.rows, top.state_part.row_sum);
    Join(first, top, tile, layout);
  }
  verbs.Finalize(tile, RowView::Make(output.o), ScalarView::Make(output.lse), top.O, top.state);
}

template <typename Verbs, typename Worktop, typename Chunk>
void RunSplitKV(const Layout& layout, const ForwardOutput& output, const Launch& launch,
                const Chunk& chunk) {
  Arena arena(launch.workspace);
  SplitKVScratch<Worktop> scratch(arena, layout, launch);
  const QTiles tiles(layout, launch.tile_q);
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t chunks = scratch.chunks;
  if (launch.split) {
    ParallelFor(launch.num_threads, tiles.count() * chunks, [&](int worker, std::int64_t slot) {
      const QTile tile = tiles.At(slot / chunks);
      if (tile.rows == 0) return;
      RunPart<Verbs>(layout, launch, chunk, Tracer(launch.observer, worker, start), tile,
                     slot % chunks, slot, scratch.partials, scratch.tops[worker]);
    });
  }
  ParallelFor(launch.num_threads, tiles.count(), [&](int worker, std::int64_t index) {
    const QTile tile = tiles.At(index);
    if (tile.rows == 0) return;
    const Tracer tracer(launch.observer, worker, start);
    if (launch.split) {
      JoinParts<Verbs>(layout, output, launch, tracer, tile, index * chunks, scratch.partials,
                       scratch.tops[worker]);
    } else {
      RunTile<Verbs>(layout, output, launch, chunk, tracer, tile, scratch.tops[worker]);
    }
  });
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
