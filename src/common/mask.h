// Which keys a query row sees. Causal masks, windows and key lengths all make one interval of keys
// a row, whose two ends never move left from one row to the next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/host_device.h"
#include "flashwok/attention.h"

namespace flashwok {

// Half open: keys [begin, end); empty when begin == end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  FLASHWOK_HOST_DEVICE constexpr bool empty() const { return begin >= end; }
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

// Half open: query rows [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  FLASHWOK_HOST_DEVICE constexpr bool empty() const { return begin >= end; }
  FLASHWOK_HOST_DEVICE constexpr std::int64_t size() const { return end - begin; }
};

// The interval mask of one sequence. A limit is kUnlimited or a distance from the diagonal.
struct IntervalMask {
  // Far beyond any length, and far from overflow: a sum or difference with a position stays within
  // 64 bits whether it is used or not.
  static constexpr std::int64_t kUnlimited = INT64_MAX / 4;

  std::int64_t seqlen_k = 0;
  std::int64_t diagonal = 0;  // row i stands at key i + diagonal
  std::int64_t left = kUnlimited;
  std::int64_t right = kUnlimited;

  // The diagonal is the top-left one for kTopLeft, else the bottom-right one; causal is a right
  // limit of 0, joined to the window by intersection.
  FLASHWOK_HOST_DEVICE static constexpr IntervalMask Make(Causal causal, std::int64_t window_left,
                                                          std::int64_t window_right,
                                                          std::int64_t seqlen_q,
                                                          std::int64_t seqlen_k) {
    IntervalMask mask;
    mask.seqlen_k = seqlen_k;
    mask.diagonal = causal == Causal::kTopLeft ? 0 : seqlen_k - seqlen_q;
    if (window_left >= 0 && window_left < kUnlimited) mask.left = window_left;
    if (window_right >= 0 && window_right < kUnlimited) mask.right = window_right;
    if (causal != Causal::kNone) mask.right = 0;
    return mask;
  }

  // Row i, all within 64 bits: lengths are below 2^31 and the limits are clamped to them.
  FLASHWOK_HOST_DEVICE constexpr KeyRange Row(std::int64_t i) const {
    const std::int64_t center = i + diagonal;
    std::int64_t begin = 0;
    std::int64_t end = seqlen_k;
    if (left < center) begin = center - left;
    if (right < seqlen_k - center) end = center + right + 1;
    if (end > seqlen_k) end = seqlen_k;
    if (begin > seqlen_k) begin = seqlen_k;
    if (end < begin) end = begin;
    return {begin, end};
  }

  // Of `rows`, those that see one of the keys [begin, end): the inverse of Row.
  FLASHWOK_HOST_DEVICE constexpr RowRange RowsSeeing(KeyRange keys, RowRange rows) const {
    const std::int64_t first = keys.begin - diagonal;  // the row whose diagonal is the first key
    const std::int64_t last = keys.end - diagonal;
    if (right < first - rows.begin) rows.begin = first - right;
    if (left < rows.end - last) rows.end = last + left;
    return rows;
  }
};

}  // namespace flashwok
