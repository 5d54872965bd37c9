// Flash Attention V3, backward. Against V2:
//   - an assembly line of two stages: while one Q tile is computed with, the next Q and dO are
//     fetched in small steps between the five products;
//   - bfloat16 is multiplied by the instructions made for it (AMX, AVX512_BF16).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_v3.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/backward_bf16-inl.h"
#include "cpu/backward_run-inl.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Fetches a Q tile and its dO into a stage, a quarter at a time.
template <typename Verbs>
class QProducer {
 public:
  QProducer(const Verbs& verbs, const BackwardScratch& scratch, const KeyTile& keys)
      : verbs_(verbs), scratch_(scratch), keys_(keys) {}

  void Begin(const QTile* tile, const QStage* stage) {
    tile_ = tile;
    stage_ = stage;
    row_ = 0;
  }
  void Step() {
    if (tile_ == nullptr) return;
    const std::int64_t end = std::min(tile_->rows, row_ + CeilDiv(tile_->rows, kSteps));
    if (row_ == 0) {
      verbs_.LoadLse(*tile_, keys_, *stage_);
      LoadD(scratch_, verbs_.tracer(), *tile_, keys_, *stage_);
    }
    if (row_ < end) verbs_.LoadQ(*tile_, keys_, *stage_, row_, end);
    row_ = end;
  }
  void Finish() {
    for (int step = 0; step < kSteps; ++step) Step();
  }

 private:
  static constexpr int kSteps = 4;
  const Verbs& verbs_;
  const BackwardScratch& scratch_;
  const KeyTile& keys_;
  const QTile* tile_ = nullptr;
  const QStage* stage_ = nullptr;
  std::int64_t row_ = 0;
};

struct KeyTileV3 {
  const BackwardScratch& scratch;
  const DQAccumulator& dq;

  template <typename Verbs>
  void operator()(const Verbs& verbs, const BackwardWorktop& top, const KeyTile& all,
                  const Visits& visits) const {
    QProducer producer(verbs, scratch, all);
    int now = 0;
    producer.Begin(&*visits.begin(), &top.stages[now]);
    producer.Finish();
    for (auto visit = visits.begin(); visit != visits.end(); ++visit, now = 1 - now) {
      const QTile& tile = *visit;
      const KeyTile keys = Trim(tile, all, {0, tile.rows});
      const QStage& stage = top.stages[now];
      const bool masked = visits.Masked(tile);
      const bool last = visit + 1 == visits.end();
      producer.Begin(last ? nullptr : &*(visit + 1), &top.stages[1 - now]);
      const bool clean = verbs.Clean(tile, keys, stage, masked);
      verbs.ScoreProduct(tile, keys, stage);  // S = Q K^T
      producer.Step();
      verbs.Probabilities(tile, keys, stage, masked);  // P = exp(S - lse)
      verbs.OutputGradientProduct(tile, keys, stage);  // dP = dO V^T
      producer.Step();
      verbs.ScoreGradient(tile, keys, stage);  // dS = P * (dP - D)
      verbs.SoftcapGradient(tile, keys);
      verbs.ValueGradient(tile, keys, stage, clean);  // dV += P^T dO
      producer.Step();
      verbs.KeyGradient(tile, keys, stage, clean);  // dK += dS^T Q
      producer.Step();
      verbs.QueryGradient(tile, keys, clean);  // dQ += dS K
      visits.InTurn(dq, tile, [&] { verbs.AddToDQ(tile, keys, dq); });
    }
  }
};

void BackwardV3(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  const BackwardJob job(problem, input, gradients, launch, true);
  const KeyTileV3 body{job.scratch, job.dq};
  if (launch.bf16 != nullptr) {
    job.ForKeyTiles<Bf16BackwardVerbs>(body);
  } else {
    job.ForKeyTiles<BackwardVerbs>(body);
  }
  job.Finish();
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(BackwardV3);

void BackwardV3(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(BackwardV3)(problem, input, gradients, launch);
}

std::size_t BackwardV3Bytes(const Problem& problem, const Launch& launch) {
  return BackwardV2Bytes(problem, launch);
}

void BackwardV3Amx(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                   const Launch& launch) {
  BackwardV3(problem, input, gradients, With(AmxProducts(), launch));
}

void BackwardV3Avx512Bf16(const Problem& problem, const BackwardInput& input,
                          const Gradients& gradients, const Launch& launch) {
  BackwardV3(problem, input, gradients, With(Avx512Bf16Products(), launch));
}

std::size_t BackwardV3Bf16Bytes(const Problem& problem, const Launch& launch) {
  return BackwardV3Bytes(problem, With(Avx512Bf16Products(), launch));
}

}  // namespace flashwok::cpu
#endif
