// Which KV tiles a Q tile visits, and which of those need masking: the one place where the masked
// and the unmasked tile loops are split, for CPU, GPU and tests.
#pragma once

#include <cstdint>

#include "common/mask.h"

namespace flashwok {

// KV tiles [begin, end) hold every key that a row of the Q tile sees; in [full_begin, full_end)
// every row sees every key, so no mask is applied there.
struct TileRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t full_begin = 0;
  std::int64_t full_end = 0;

  FLASHWOK_HOST_DEVICE constexpr bool empty() const { return begin >= end; }
  FLASHWOK_HOST_DEVICE constexpr bool Contains(std::int64_t k_tile) const {
    return begin <= k_tile && k_tile < end;
  }
  FLASHWOK_HOST_DEVICE constexpr bool NeedsMask(std::int64_t k_tile) const {
    return k_tile < full_begin || k_tile >= full_end;
  }
};

FLASHWOK_HOST_DEVICE constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// For rows [row_begin, row_end), a non-empty range. The interval ends are monotone in the row, so
// the union of the rows' keys lies between the first row's begin and the last row's end, and the
// intersection between the last row's begin and the first row's end.
FLASHWOK_HOST_DEVICE constexpr TileRange VisitedTiles(const IntervalMask& mask,
                                                      std::int64_t row_begin, std::int64_t row_end,
                                                      std::int64_t tile_kv) {
  const KeyRange first = mask.Row(row_begin);
  const KeyRange last = mask.Row(row_end - 1);
  TileRange range;
  if (first.begin >= last.end) return range;
  range.begin = first.begin / tile_kv;
  range.end = CeilDiv(last.end, tile_kv);
  range.full_begin = CeilDiv(last.begin, tile_kv);
  range.full_end = first.end / tile_kv;
  if (range.full_end <= range.full_begin) range.full_begin = range.full_end = range.begin;
  return range;
}

}  // namespace flashwok
