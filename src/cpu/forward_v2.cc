// Flash Attention V2 (Dao 2023, Algorithm 1): Q outer, KV inner. Against V1:
//   - a worker owns a Q tile, not a head: every worker is busy, and O, m, l stay on its worktop;
//   - O is divided by l once, at the end; Q is scaled outside the loop; of a KV tile only the rows
//     that see it are computed (the score stage and the skipping of tiles are V1's here too);
//   - with fewer than two Q tiles for each worker, workers share the keys of a tile (split-KV).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_v2.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/forward-inl.h"
#include "cpu/kernels.h"
#include "cpu/parallel_for.h"
#include "cpu/split_kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// One chunk of keys for one Q tile: leaves (m, l, O) of that chunk, not yet divided by l.
struct ChunkV2 {
  const Layout& layout;
  const Launch& launch;

  void operator()(const ForwardVerbs& verbs, const ForwardWorktop& top, const QTile& tile,
                  const TileRange& range, std::int64_t begin, std::int64_t end,
                  const RowState& state, float* O) const {
    ResetState(state, tile.rows);
    ZeroTile(O, tile.rows, layout.head_dim_v);
    for (std::int64_t j = begin; j < end; ++j) {
      const KeyTile keys = verbs.Keys(tile, j);
      const bool masked = verbs.Masked(range, j);
      verbs.LoadK(tile, keys);
      verbs.LoadV(tile, keys);
      const bool clean = !masked || verbs.Clean(keys, top.V);
      verbs.ForStrips(tile, keys, tile.rows, [&](const RowRange& rows, const KeyTile& seen) {
        verbs.ScoreProduct(tile, seen, rows, top.KT, top.S);           // S = Q K^T
        verbs.Scores(tile, seen, rows, masked, top.S);                 // mask, bias
        verbs.Softmax(tile, seen, rows, state, masked, top.S);         // m, P, l
        verbs.RescaleO(tile, seen, rows, state, O);                    // O *= alpha
        verbs.ValueProduct(tile, seen, rows, top.S, top.V, clean, O);  // O += P V
      });
    }
  }
};

void ForwardV2(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  RunSplitKV<ForwardVerbs, ForwardWorktop>(layout, output, launch, ChunkV2{layout, launch});
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(ForwardV2);

void ForwardV2(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(ForwardV2)(problem, output, launch);
}

std::size_t ForwardV2Bytes(const Problem& problem, const Launch& launch) {
  return SplitKVBytes<ForwardWorktop>(Layout(problem), launch);
}

}  // namespace flashwok::cpu
#endif
