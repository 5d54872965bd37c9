// Softmax of a whole row, as standard attention does it, forward and backward. Per-target guard.
#if defined(FLASHWOK_CPU_STANDARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_STANDARD_INL_H_
#undef FLASHWOK_CPU_STANDARD_INL_H_
#else
#define FLASHWOK_CPU_STANDARD_INL_H_
#endif

#include "cpu/score_stage-inl.h"
#include "cpu/standard.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Row r of a Q tile: scores in `row` become P, divided by its sum, dropout applied.
HWY_INLINE void SoftmaxRow(const Layout& layout, const QTile& tile, std::int64_t r,
                           const RowState& state, float* row) {
  const std::int64_t cols = tile.sequence.seqlen_k;
  const std::int64_t padded = RoundUp(cols, kLanes);
  if (cols == 0) return;
  ScoreStage(layout, tile, 0, cols, padded, r, 1, true, row);
  OnlineSoftmax(row, 1, padded, 1.0f, state);
  ScaleRow(row, padded, *state.row_sum == 0.0f ? 0.0f : 1.0f / *state.row_sum);
  if (layout.dropout.active()) DropRows(layout, tile, 0, padded, r, 1, row);
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
