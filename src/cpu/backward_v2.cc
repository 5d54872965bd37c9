// Flash Attention V2, backward (Dao 2023, Algorithm 2). Against V1:
//   - a worker owns a KV tile of a head, not a head; dK and dV stay on its worktop, as in V1;
//   - P comes from lse alone, and D = rowsum(dO * O) is computed once for each row, beforehand;
//   - the parts of dQ are added in the order of the keys, whoever computed them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_v2.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/backward_run-inl.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

struct KeyTileV2 {
  const BackwardScratch& scratch;
  const DQAccumulator& dq;

  void operator()(const BackwardVerbs& verbs, const BackwardWorktop& top, const KeyTile& all,
                  const Visits& visits) const {
    const QStage& stage = top.stages[0];
    for (const QTile& tile : visits) {
      const KeyTile keys = Trim(tile, all, {0, tile.rows});
      const bool masked = visits.Masked(tile);
      verbs.LoadQ(tile, keys, stage, 0, tile.rows);
      verbs.LoadLse(tile, keys, stage);
      LoadD(scratch, verbs.tracer(), tile, keys, stage);
      const bool clean = verbs.Clean(tile, keys, stage, masked);
      verbs.ScoreProduct(tile, keys, stage);           // S = Q K^T
      verbs.Probabilities(tile, keys, stage, masked);  // P = exp(S - lse)
      verbs.OutputGradientProduct(tile, keys, stage);  // dP = dO V^T
      verbs.ScoreGradient(tile, keys, stage);          // dS = P * (dP - D)
      verbs.SoftcapGradient(tile, keys);
      verbs.ValueGradient(tile, keys, stage, clean);  // dV += P^T dO
      verbs.KeyGradient(tile, keys, stage, clean);    // dK += dS^T Q
      verbs.QueryGradient(tile, keys, clean);         // dQ += dS K
      visits.InTurn(dq, tile, [&] { verbs.AddToDQ(tile, keys, dq); });
    }
  }
};

void BackwardV2(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  const BackwardJob job(problem, input, gradients, launch, true);
  job.ForKeyTiles<BackwardVerbs>(KeyTileV2{job.scratch, job.dq});
  job.Finish();
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(BackwardV2);

void BackwardV2(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(BackwardV2)(problem, input, gradients, launch);
}

std::size_t BackwardV2Bytes(const Problem& problem, const Launch& launch) {
  Arena arena(nullptr);
  const BackwardScratch scratch(arena, Layout(problem), launch);
  return arena.used();
}

}  // namespace flashwok::cpu
#endif
