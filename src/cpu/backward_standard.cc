// Standard attention, backward: S, P, dP and dS of every head pass through slow memory.
//   S = Q K^T;  P = softmax(S);  dP = dO V^T;  dS = P * (dP - D);  then dV = P^T dO, dK = dS^T Q
//   and dQ = dS K.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_standard.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/backward_run-inl.h"
#include "cpu/kernels.h"
#include "cpu/standard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Moves tiles between the worktop and the matrices in slow memory.
class ScoreMatrices {
 public:
  ScoreMatrices(const StandardScratch& scratch, const Tracer& tracer)
      : scratch_(scratch), tracer_(tracer) {}

  void Store(Role role, const QTile& tile, const KeyTile& keys, const float* from,
             float* matrix) const {
    const auto span =
        tracer_.Store(role, tile.rows * keys.cols * 4, ForwardVerbs::Place(tile, keys.index));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(from + r * kTileLd, keys.padded, At(matrix, tile, r) + keys.begin);
    }
  }
  void Load(Role role, const QTile& tile, const KeyTile& keys, float* matrix, float* to) const {
    const auto span =
        tracer_.Load(role, tile.rows * keys.cols * 4, ForwardVerbs::Place(tile, keys.index));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(At(matrix, tile, r) + keys.begin, keys.padded, to + r * kTileLd);
    }
  }
  float* At(float* matrix, const QTile& tile, std::int64_t r) const {
    return scratch_.Row(matrix, tile.batch_head, tile.row_begin + r);
  }
  const StandardScratch& scratch() const { return scratch_; }

 private:
  const StandardScratch& scratch_;
  const Tracer& tracer_;
};

// Where an event belongs to no KV tile.
constexpr KeyTile kAllKeys{.index = -1};

// S and dP of one Q tile against every KV tile; then P and dS of its rows.
HWY_INLINE void ScorePasses(const BackwardCall& call, const BackwardVerbs& verbs,
                            const BackwardWorktop& top, const BackwardScratch& row_scratch,
                            const ScoreMatrices& matrices, const QTile& tile) {
  const StandardScratch& scratch = matrices.scratch();
  const std::int64_t tile_kv = call.launch.tile_kv;
  const QStage& stage = top.stages[0];
  verbs.LoadQ(tile, kAllKeys, stage, 0, tile.rows);
  for (std::int64_t j = 0; j * tile_kv < tile.sequence.seqlen_k; ++j) {
    const KeyTile keys = MakeKeyTile(tile.sequence, j, static_cast<int>(tile_kv));
    verbs.LoadKV(tile, keys);
    verbs.ScoreProduct(tile, keys, stage);
    matrices.Store(Role::kS, tile, keys, top.S, scratch.S);
    verbs.OutputGradientProduct(tile, keys, stage);
    matrices.Store(Role::kDP, tile, keys, top.dP, scratch.dP);
  }
  verbs.LoadLse(tile, kAllKeys, stage);
  LoadD(row_scratch, verbs.tracer(), tile, kAllKeys, stage);
  for (std::int64_t j = 0; j * tile_kv < tile.sequence.seqlen_k; ++j) {
    const KeyTile keys = MakeKeyTile(tile.sequence, j, static_cast<int>(tile_kv));
    matrices.Load(Role::kS, tile, keys, scratch.S, top.S);
    matrices.Load(Role::kDP, tile, keys, scratch.dP, top.dP);
    verbs.Probabilities(tile, keys, stage, true);
    verbs.ScoreGradient(tile, keys, stage);
    verbs.SoftcapGradient(tile, keys);
    matrices.Store(Role::kP, tile, keys, top.S, scratch.P);
    matrices.Store(Role::kDS, tile, keys, top.dP, scratch.dS);
  }
}

// dQ = dS K of one Q tile, which is still on the worktop.
HWY_INLINE void QueryPass(const BackwardCall& call, const BackwardVerbs& verbs,
                          const BackwardWorktop& top, const ScoreMatrices& matrices,
                          const DQAccumulator& dq, const QTile& tile) {
  const std::int64_t tile_kv = call.launch.tile_kv;
  ZeroTile(top.dQ, tile.rows, call.layout.head_dim);
  for (std::int64_t j = 0; j * tile_kv < tile.sequence.seqlen_k; ++j) {
    const KeyTile keys = MakeKeyTile(tile.sequence, j, static_cast<int>(tile_kv));
    matrices.Load(Role::kDS, tile, keys, matrices.scratch().dS, top.dP);
    verbs.LoadK(tile, keys);
    verbs.QueryGradient<Add::kYes>(tile, keys, verbs.Clean(tile, keys, top.stages[0], true));
  }
  verbs.AddToDQ(tile, kAllKeys, dq);
}

// dV = P^T dO and dK = dS^T Q of one KV tile.
struct KeyTileStandard {
  const StandardScratch& matrices;

  void operator()(const BackwardVerbs& verbs, const BackwardWorktop& top, const KeyTile& keys,
                  const Visits& visits) const {
    const ScoreMatrices scores(matrices, verbs.tracer());
    const QStage& stage = top.stages[0];
    for (const QTile& tile : visits) {
      verbs.LoadQ(tile, keys, stage, 0, tile.rows);
      scores.Load(Role::kP, tile, keys, matrices.P, top.S);
      scores.Load(Role::kDS, tile, keys, matrices.dS, top.dP);
      const bool clean = verbs.Clean(tile, keys, stage, true);
      verbs.ValueGradient(tile, keys, stage, clean);
      verbs.KeyGradient(tile, keys, stage, clean);
    }
  }
};

void BackwardStandard(const Problem& problem, const BackwardInput& input,
                      const Gradients& gradients, const Launch& launch) {
  BackwardJob job(problem, input, gradients, launch, true);
  const StandardScratch matrices(job.arena, job.layout, launch, 4);
  const QTiles tiles(job.layout, launch.tile_q);
  ParallelFor(launch.num_threads, tiles.count(), [&](int worker, std::int64_t index) {
    const QTile tile = tiles.At(index);
    if (tile.rows == 0) return;
    const Tracer tracer(launch.observer, worker, job.call.start);
    const BackwardWorktop& top = job.scratch.tops[worker];
    const BackwardVerbs verbs(job.call, tracer, top);
    const ScoreMatrices scores(matrices, tracer);
    ScorePasses(job.call, verbs, top, job.scratch, scores, tile);
    QueryPass(job.call, verbs, top, scores, job.dq, tile);
  });
  job.ForKeyTiles<BackwardVerbs>(KeyTileStandard{matrices});
  job.Finish();
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(BackwardStandard);

void BackwardStandard(const Problem& problem, const BackwardInput& input,
                      const Gradients& gradients, const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(BackwardStandard)(problem, input, gradients, launch);
}

std::size_t BackwardStandardBytes(const Problem& problem, const Launch& launch) {
  Arena arena(nullptr);
  const Layout layout(problem);
  const BackwardScratch scratch(arena, layout, launch);
  const StandardScratch matrices(arena, layout, launch, 4);
  return arena.used();
}

}  // namespace flashwok::cpu
#endif
