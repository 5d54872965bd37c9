#include "common/philox.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace flashwok {
namespace {

// The known answers that come with Random123.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, TakesTheWordOfItsElement) {
  const std::uint64_t seed = 0x299f31d0a4093822;
  const std::uint64_t offset = 0x0000000003707344;
  const Dropout dropout = Dropout::Make(0.5, seed, offset);
  // Words d16cfe09, 94fdcceb, 5001e420, 24126ea1 against the threshold 80000000.
  const std::uint32_t j = 0x243f6a88u * 4u;
  const PhiloxCounter block = dropout.Block(0x13198a2e, 0x85a308d3, 0x243f6a88);
  EXPECT_EQ(block[0], 0xd16cfe09u);
  EXPECT_EQ(dropout.threshold, 0x80000000u);
  for (std::uint32_t n = 0; n < 4; ++n) {
    EXPECT_EQ(dropout.Keep(0x13198a2e, 0x85a308d3, j + n),
              dropout.Block(0x13198a2e, 0x85a308d3, (j + n) / 4)[n] >= 0x80000000u);
  }
}

TEST(Dropout, HighOffsetBitsChangeTheKey) {
  const Dropout low = Dropout::Make(0.5, 1, 7);
  const Dropout high = Dropout::Make(0.5, 1, 7 + (std::uint64_t{1} << 32));
  EXPECT_EQ(low.offset, high.offset);
  EXPECT_NE(low.key, high.key);
}

TEST(Dropout, DropsTheAskedShare) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const Dropout dropout = Dropout::Make(p, 42, 0);
    int dropped = 0;
    constexpr int kSide = 200;
    for (std::uint32_t i = 0; i < kSide; ++i) {
      for (std::uint32_t j = 0; j < kSide; ++j) dropped += !dropout.Keep(3, i, j);
    }
    EXPECT_NEAR(dropped / double{kSide * kSide}, p, 0.01);
  }
}

TEST(Dropout, ThresholdIsRoundedDown) {
  EXPECT_EQ(Dropout::Make(0.1, 0, 0).threshold, 429496729u);
  EXPECT_EQ(Dropout::Make(0.99999999999, 0, 0).threshold, 0xFFFFFFFFu);
}

}  // namespace
}  // namespace flashwok
