// The log of V3's time stamps, on the emulator: nothing lost in silence, nothing when they are off.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/forward_v3_setup.h"
#include "lib/command.h"
#include "lib/timeline.h"
#include "tests/emulator/emulated_v3.h"
#include "tests/emulator/guarded_log.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

using cli::StampedBlock;

constexpr int kBlocks = 3;

// --- One small problem. --------------------------------------------------------------------------

class StampLogTest : public ::testing::Test {
 protected:
  StampLogTest()
      : data_({.name = "stamp_log",
               .dtype = DType::kBFloat16,
               .batch = 1,
               .seqlen_q = 600,
               .seqlen_k = 600,
               .head_dim = 128,
               .causal = Causal::kBottomRight}),
        row_(cuda::ForwardV3RowOf(flashwok::Layout(data_.problem))) {}

  void Run(GuardedLog* log, bool time_stamps = true) {
    RunEmulatedV3(data_.problem, data_.output,
                  {.row = row_,
                   .seed = 7,
                   .blocks = kBlocks,
                   .time_stamps = time_stamps,
                   .stamps = log == nullptr ? nullptr : log->get()});
  }

  ProblemData data_;
  int row_;
};

TEST_F(StampLogTest, NothingIsRecordedWhenOff) {
  GuardedLog log({0, 1, 2}, 100);
  Run(&log, false);
  EXPECT_TRUE(log.untouched());
  Run(&log, true);
  EXPECT_FALSE(log.untouched());
  EXPECT_NO_THROW(Run(nullptr, true));
}

TEST_F(StampLogTest, WhatHasNoRoomIsCounted) {
  GuardedLog large({1, 2}, 1 << 12);
  Run(&large);
  const std::vector<StampedBlock> all = cli::ReadStamps(large.Bytes());
  for (int capacity : {1, 2, 17, 60, 1000}) {
    SCOPED_TRACE(capacity);
    GuardedLog small({1, 2}, capacity);
    Run(&small);
    EXPECT_TRUE(small.guarded());
    const std::vector<StampedBlock> kept = cli::ReadStamps(small.Bytes());
    ASSERT_EQ(kept.size(), 2u);
    std::int64_t lost = 0;
    for (std::size_t n = 0; n < 2; ++n) {
      EXPECT_EQ(all[n].lost, 0);
      EXPECT_EQ(kept[n].marks, all[n].marks);
      std::int64_t room = 0;
      for (const cuda::StampTrack& track : small.get()->tracks[n]) {
        room += std::min(track.count, static_cast<std::uint32_t>(capacity));
      }
      EXPECT_EQ(kept[n].lost, kept[n].marks - room);
      lost += kept[n].lost;
      // What is kept is the beginning.
      for (std::size_t role = 0; role < kept[n].roles.size(); ++role) {
        const std::vector<cli::StampedStep>& some = kept[n].roles[role];
        ASSERT_LE(some.size(), all[n].roles[role].size());
        for (std::size_t i = 0; i < some.size(); ++i) {
          EXPECT_EQ(some[i].step, all[n].roles[role][i].step);
          EXPECT_EQ(some[i].k_tile, all[n].roles[role][i].k_tile);
          EXPECT_EQ(some[i].q_tile, all[n].roles[role][i].q_tile);
        }
      }
    }
    const cli::Timeline timeline =
        cli::MakeTimeline(kept, data_.problem, data_.output, cuda::kForwardV3Configs[row_]);
    EXPECT_EQ(timeline.lost, lost);
    EXPECT_EQ(timeline.lost > 0, capacity < 1000);
  }
}

TEST_F(StampLogTest, OnlyTheChosenBlocks) {
  GuardedLog log({2, 0}, 1 << 12);
  Run(&log);
  const std::vector<StampedBlock> blocks = cli::ReadStamps(log.Bytes());
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].number, 2);
  EXPECT_EQ(blocks[1].number, 0);
  GuardedLog absent({0, kBlocks}, 1 << 12);
  Run(&absent);
  EXPECT_THROW(cli::ReadStamps(absent.Bytes()), cli::BadInput);
}

}  // namespace
}  // namespace flashwok::test
