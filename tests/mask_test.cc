// The interval mask and the tile range against a scan of every row and key.
#include "common/mask.h"

#include <gtest/gtest.h>

#include "common/tile_range.h"

namespace flashwok::test {
namespace {

constexpr std::int64_t kWindows[] = {-1, 0, 1, 5, INT64_MAX - 1};

// Calls body(mask, seqlen_q) for small problems of every kind.
template <typename Body>
void ForEachMask(const Body& body) {
  for (Causal causal : {Causal::kNone, Causal::kBottomRight, Causal::kTopLeft}) {
    for (std::int64_t left : kWindows) {
      for (std::int64_t right : kWindows) {
        for (auto [q, k] : {std::pair{7, 7}, {3, 11}, {11, 3}, {9, 1}, {1, 9}}) {
          body(IntervalMask::Make(causal, left, right, q, k), q);
        }
      }
    }
  }
}

TEST(Mask, RowsSeeingIsTheInverseOfRow) {
  ForEachMask([](const IntervalMask& mask, std::int64_t seqlen_q) {
    for (std::int64_t begin = 0; begin < mask.seqlen_k; ++begin) {
      for (std::int64_t end = begin + 1; end <= mask.seqlen_k; ++end) {
        const RowRange rows = mask.RowsSeeing({begin, end}, {0, seqlen_q});
        for (std::int64_t i = 0; i < seqlen_q; ++i) {
          const KeyRange seen = mask.Row(i);
          const bool sees = seen.begin < end && begin < seen.end && !seen.empty();
          ASSERT_EQ(sees, rows.begin <= i && i < rows.end) << i << ' ' << begin << ' ' << end;
        }
      }
    }
  });
}

TEST(Mask, VisitedTilesHoldEveryKeySeen) {
  ForEachMask([](const IntervalMask& mask, std::int64_t seqlen_q) {
    for (std::int64_t tile : {1, 2, 4}) {
      const TileRange range = VisitedTiles(mask, 0, seqlen_q, tile);
      for (std::int64_t i = 0; i < seqlen_q; ++i) {
        for (std::int64_t j = 0; j < mask.seqlen_k; ++j) {
          const bool sees = mask.Row(i).begin <= j && j < mask.Row(i).end;
          const std::int64_t index = j / tile;
          ASSERT_TRUE(!sees || range.Contains(index));
          ASSERT_TRUE(sees || !range.Contains(index) || range.NeedsMask(index));
        }
      }
    }
  });
}

// A compiler may compute both sides of a choice: nvcc turns "left < center ? center - left : 0" into
// max(center - left, 0).
TEST(Mask, NoLimitIsNearOverflow) {
  constexpr std::int64_t kFurthest = std::int64_t{1} << 33;  // any position
  ForEachMask([](const IntervalMask& mask, std::int64_t) {
    for (std::int64_t limit : {mask.left, mask.right}) {
      std::int64_t sum = 0;
      ASSERT_FALSE(__builtin_add_overflow(limit, kFurthest, &sum));
      ASSERT_FALSE(__builtin_sub_overflow(-kFurthest, limit, &sum));
    }
  });
  const IntervalMask mask =
      IntervalMask::Make(Causal::kNone, INT64_MAX, INT64_MAX, 1, 1);
  EXPECT_EQ(mask.left, IntervalMask::kUnlimited);
  EXPECT_GT(IntervalMask::kUnlimited, kFurthest);
}

}  // namespace
}  // namespace flashwok::test
