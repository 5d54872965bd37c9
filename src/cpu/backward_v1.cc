// Flash Attention V1, backward (Dao et al. 2022, Algorithm 4): KV outer, Q inner. Against standard
// attention:
//   - P is recomputed from m and l instead of being read back;
//   - dQ goes to slow memory and back at every tile, dK and dV stay on the worktop;
//   - O and dO come in at each tile, and D = rowsum(dO * O) is computed there; one worker a head.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_v1.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/backward_run-inl.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// m and l of the rows as V1 saved them; without them m = lse and l = 1, which is the same P.
HWY_INLINE void LoadRowState(const BackwardCall& call, const BackwardVerbs& verbs,
                             const QTile& tile, const KeyTile& keys, const QStage& stage) {
  if (!call.row_max || !call.row_sum) {
    verbs.LoadLse(tile, keys, stage);
    return;
  }
  const auto place = ForwardVerbs::Place(tile, keys.index);
  verbs.tracer().Load(Role::kRowMax, tile.rows * 4, place);
  verbs.tracer().Load(Role::kRowSum, tile.rows * 4, place);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t row = tile.sequence.q_begin + tile.row_begin + r;
    stage.row_max[r] = call.row_max.At(tile.batch, tile.head, row) * kLog2E;
    stage.row_sum[r] = call.row_sum.At(tile.batch, tile.head, row);
  }
}

struct KeyTileV1 {
  const BackwardCall& call;
  const DQAccumulator& dq;

  void operator()(const BackwardVerbs& verbs, const BackwardWorktop& top, const KeyTile& all,
                  const Visits& visits) const {
    const QStage& stage = top.stages[0];
    for (const QTile& tile : visits) {
      const KeyTile keys = Trim(tile, all, {0, tile.rows});
      const bool masked = visits.Masked(tile);
      verbs.LoadQ(tile, keys, stage, 0, tile.rows);
      LoadRowState(call, verbs, tile, keys, stage);
      verbs.ComputeD(tile, keys, stage);
      const bool clean = verbs.Clean(tile, keys, stage, masked);
      verbs.ScoreProduct(tile, keys, stage);           // S = Q K^T
      verbs.Probabilities(tile, keys, stage, masked);  // P = exp(S - m) / l
      verbs.OutputGradientProduct(tile, keys, stage);  // dP = dO V^T
      verbs.ScoreGradient(tile, keys, stage);          // dS = P * (dP - D)
      verbs.SoftcapGradient(tile, keys);
      verbs.ValueGradient(tile, keys, stage, clean);  // dV += P^T dO
      verbs.KeyGradient(tile, keys, stage, clean);    // dK += dS^T Q
      verbs.QueryGradient(tile, keys, clean);         // dQ += dS K
      verbs.AddToDQ(tile, keys, dq);
    }
  }
};

void BackwardV1(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  const BackwardJob job(problem, input, gradients, launch, false);
  ParallelFor(launch.num_threads, job.heads_kv(), [&](int worker, std::int64_t head) {
    for (std::int64_t j = 0; j < job.key_tiles(); ++j) {
      job.RunKeyTile<BackwardVerbs>(worker, head, j, KeyTileV1{job.call, job.dq});
    }
  });
  job.Finish();
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(BackwardV1);

void BackwardV1(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(BackwardV1)(problem, input, gradients, launch);
}

std::size_t BackwardV1Bytes(const Problem& problem, const Launch& launch) {
  return BackwardV2Bytes(problem, launch);
}

}  // namespace flashwok::cpu
#endif
