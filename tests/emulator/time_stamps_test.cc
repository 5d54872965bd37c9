// The time stamps of V3, recorded on the emulator: every work tile and every KV tile once, in
// order, nothing lost in silence, and nothing at all when they are off.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "common/tile_range.h"
#include "cuda/forward_v3_setup.h"
#include "lib/timeline.h"
#include "tests/emulator/emulated_v3.h"
#include "tests/emulator/guarded_log.h"
#include "tests/problem_data.h"

namespace flashwok::test {
namespace {

using cli::StampedBlock;
using cli::StampedStep;
using cli::TraceEvent;
using cuda::StampLog;
using cuda::V3Step;

constexpr int kBlocks = 3;

const std::vector<Case>& Problems() {
  static const std::vector<Case> cases = {
      {.name = "full", .batch = 1, .seqlen_q = 520, .seqlen_k = 520},
      {.name = "causal", .seqlen_q = 520, .seqlen_k = 520, .causal = Causal::kBottomRight},
      {.name = "one_tile", .seqlen_q = 40, .seqlen_k = 60},
      {.name = "no_keys", .batch = 1, .seqlen_q = 140, .seqlen_k = 0},
      {.name = "gqa_more_keys",
       .batch = 1,
       .seqlen_q = 200,
       .seqlen_k = 700,
       .num_heads = 4,
       .num_heads_kv = 2,
       .causal = Causal::kBottomRight},
      // Tiles on both sides that some consumers of a block pass over.
      {.name = "window",
       .batch = 1,
       .seqlen_q = 600,
       .seqlen_k = 600,
       .window_left = 70,
       .window_right = 10},
      {.name = "varlen",
       .batch = 4,
       .causal = Causal::kTopLeft,
       .lengths_q = {0, 130, 300, 5},
       .lengths_k = {50, 200, 333, 0}},
      {.name = "seqused", .seqlen_q = 300, .seqlen_k = 300, .seqused_k = {133, 0}},
      {.name = "float32_output", .seqlen_q = 200, .seqlen_k = 200, .float32_output = true},
  };
  return cases;
}

class TimeStampsTest : public ::testing::TestWithParam<std::tuple<int, Case>> {
 protected:
  TimeStampsTest() {
    Case c = std::get<Case>(GetParam());
    c.dtype = DType::kBFloat16;
    c.head_dim = config().head_dim;
    c.head_dim_v = config().head_dim_v;
    data_ = std::make_unique<ProblemData>(c);
  }
  static int row() { return std::get<int>(GetParam()); }
  static const cuda::ForwardV3Config& config() { return cuda::kForwardV3Configs[row()]; }

  // All blocks are recorded.
  void Record(std::uint64_t seed, GuardedLog* log) {
    data_->ResetOutputs();
    RunEmulatedV3(data_->problem, data_->output,
                  {.row = row(),
                   .seed = seed,
                   .blocks = kBlocks,
                   .resident_blocks = 2,
                   .time_stamps = true,
                   .stamps = log->get()});
  }
  std::vector<int> Blocks() const {
    const flashwok::Layout layout(data_->problem);
    std::int64_t tiles = 0;
    for (std::int64_t b = 0; b < layout.batch; ++b) {
      tiles += CeilDiv(layout.At(b).seqlen_q, config().tile_q());
    }
    // Varlen has slots that stay empty.
    const bool varlen = data_->problem.cu_seqlens_q.present();
    const std::int64_t work = varlen ? kBlocks : tiles * layout.num_heads;
    std::vector<int> blocks;
    for (int n = 0; n < std::min<std::int64_t>(kBlocks, work); ++n) blocks.push_back(n);
    return blocks;
  }

  std::unique_ptr<ProblemData> data_;
};

using Steps = std::vector<StampedStep>;
using Counts = std::map<V3Step, int>;
using WorkTile = std::tuple<int, int, int>;  // batch, head, Q tile

// The steps of each KV tile of each work tile.
std::map<WorkTile, std::map<int, Counts>> ByTile(const Steps& steps) {
  std::map<WorkTile, std::map<int, Counts>> found;
  for (const StampedStep& step : steps) {
    if (step.q_tile < 0) continue;
    auto& work = found[{step.batch, step.head, step.q_tile}];
    if (step.k_tile >= 0) ++work[step.k_tile][step.step];
  }
  return found;
}

// What a consumer does to a tile, or the producer.
Counts Expected(bool producer, const TileRange& own, int j) {
  if (producer) {
    return {{V3Step::kPlaceK, 1}, {V3Step::kPlaceV, 1}, {V3Step::kLoadK, 1}, {V3Step::kLoadV, 1}};
  }
  if (!own.Contains(j)) return {{V3Step::kSkip, 1}};
  Counts counts;
  for (V3Step step : {V3Step::kK, V3Step::kTurn, V3Step::kIssueS, V3Step::kS, V3Step::kSoftmax,
                      V3Step::kPack, V3Step::kV, V3Step::kIssueO, V3Step::kO}) {
    counts[step] = 1;
  }
  if (j + 1 < own.end) counts[V3Step::kRescale] = 1;
  return counts;
}

TileRange Visited(const Sequence& sequence, std::int64_t row, int rows, int tile_kv) {
  if (row + rows <= 0) return {};
  return VisitedTiles(sequence.mask, std::max<std::int64_t>(row, 0), row + rows, tile_kv);
}

// Each of the producer's work tiles, in each role.
void ExpectTiles(const StampedBlock& block, const flashwok::Layout& layout,
                 const cuda::ForwardV3Config& config) {
  const auto produced = ByTile(block.roles[0]);
  for (int role = 0; role <= config.consumers; ++role) {
    SCOPED_TRACE("role " + std::to_string(role));
    const auto found = ByTile(block.roles[static_cast<std::size_t>(role)]);
    ASSERT_EQ(found.size(), produced.size());
    for (const auto& [work, tiles] : found) {
      const auto& [batch, head, q_tile] = work;
      EXPECT_TRUE(produced.contains(work));
      const Sequence sequence = layout.At(batch);
      const std::int64_t row = cuda::FirstRow(sequence.seqlen_q, config.tile_q(), q_tile);
      const TileRange all = Visited(sequence, row, config.tile_q(), config.tile_kv);
      const TileRange own =
          role == 0 ? all : Visited(sequence, row + 64 * (role - 1), 64, config.tile_kv);
      std::map<int, Counts> want;
      for (auto j = static_cast<int>(all.begin); j < all.end; ++j) {
        want[j] = Expected(role == 0, own, j);
      }
      EXPECT_EQ(tiles, want) << batch << ' ' << head << ' ' << q_tile;
    }
  }
}

void ExpectOrder(const Steps& steps) {
  for (std::size_t n = 0; n < steps.size(); ++n) {
    ASSERT_LE(steps[n].begin, steps[n].end);
    if (n > 0) {
      ASSERT_EQ(steps[n].begin, steps[n - 1].end);
    }
  }
}

TEST_P(TimeStampsTest, EveryTileOnceInOrder) {
  SCOPED_TRACE(data_->Describe());
  const flashwok::Layout layout(data_->problem);
  std::multiset<WorkTile> all_works;
  for (int b = 0; b < layout.batch; ++b) {
    for (int h = 0; h < layout.num_heads; ++h) {
      const std::int64_t tiles = CeilDiv(layout.At(b).seqlen_q, config().tile_q());
      for (int i = 0; i < tiles; ++i) all_works.insert({b, h, i});
    }
  }
  for (std::uint64_t seed : {std::uint64_t{0}, Seed() | 1}) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    GuardedLog log(Blocks(), 1 << 12);
    ASSERT_NO_THROW(Record(seed, &log));
    EXPECT_TRUE(log.guarded());
    std::multiset<WorkTile> works;  // of the producers of all blocks
    for (const StampedBlock& block : cli::ReadStamps(log.Bytes())) {
      SCOPED_TRACE("block " + std::to_string(block.number));
      EXPECT_EQ(block.multiprocessor, block.number);
      EXPECT_EQ(block.lost, 0);
      EXPECT_GT(block.mhz, 0.0);
      for (int role = 0; role < StampLog::kRoles; ++role) {
        const Steps& steps = block.roles[static_cast<std::size_t>(role)];
        EXPECT_EQ(steps.empty(), role > config().consumers);
        ExpectOrder(steps);
      }
      for (const auto& [work, tiles] : ByTile(block.roles[0])) works.insert(work);
      ExpectTiles(block, layout, config());
    }
    EXPECT_EQ(works, all_works);
  }
}

TEST_P(TimeStampsTest, TheTimelineIsSound) {
  SCOPED_TRACE(data_->Describe());
  const flashwok::Layout layout(data_->problem);
  GuardedLog log(Blocks(), 1 << 12);
  ASSERT_NO_THROW(Record(Seed() | 1, &log));
  const std::vector<StampedBlock> blocks = cli::ReadStamps(log.Bytes());
  const cli::Timeline timeline = cli::MakeTimeline(blocks, data_->problem, data_->output, config());
  std::set<std::int32_t> tracks;
  for (const cli::TraceTrack& track : timeline.tracks) {
    EXPECT_TRUE(tracks.insert(track.id).second) << track.name;
  }
  std::map<std::int32_t, std::int64_t> ends;  // of the tracks
  std::int64_t loaded = 0, stored = 0, flops = 0, last = 0;
  for (const TraceEvent& event : timeline.events) {
    const Event& e = event.event;
    EXPECT_TRUE(tracks.contains(e.track)) << e.track;
    EXPECT_GE(e.duration, 0);
    EXPECT_GE(e.t0, last);
    last = e.t0;
    EXPECT_GE(e.t0, ends[e.track]) << "events of track " << e.track << " overlap";
    ends[e.track] = e.t0 + e.duration;
    if (e.kind == EventKind::kLoad) loaded += e.bytes;
    if (e.kind == EventKind::kStore) stored += e.bytes;
    flops += e.flops;
    EXPECT_EQ(event.bound, e.kind == EventKind::kLoad || e.kind == EventKind::kProduct ||
                               (e.kind == EventKind::kStore && event.bound));
    if (event.dependency < 0) continue;
    const Event& on = timeline.events.at(static_cast<std::size_t>(event.dependency)).event;
    EXPECT_LE(on.t0 + on.duration, e.t0 + e.duration) << Name(e.kind) << ' ' << Name(e.role);
  }
  // What the work tiles need, by their number.
  std::int64_t want_loaded = 0, want_stored = 0, want_flops = 0;
  for (int b = 0; b < layout.batch; ++b) {
    const Sequence sequence = layout.At(b);
    const int tile_q = config().tile_q();
    for (std::int64_t row = cuda::FirstRow(sequence.seqlen_q, tile_q, 0); row < sequence.seqlen_q;
         row += tile_q) {
      const auto rows = [&](std::int64_t total, std::int64_t first, std::int64_t most) {
        return std::clamp<std::int64_t>(first + most, 0, total) -
               std::clamp<std::int64_t>(first, 0, total);
      };
      want_loaded += rows(layout.total_q, sequence.q_begin + row, tile_q) * layout.head_dim * 2;
      want_stored += rows(sequence.seqlen_q, row, tile_q) * layout.head_dim_v *
                     ItemSize(data_->output.o.dtype);
      const TileRange all = Visited(sequence, row, tile_q, config().tile_kv);
      for (std::int64_t j = all.begin; j < all.end; ++j) {
        want_loaded +=
            rows(layout.total_k, sequence.k_begin + j * config().tile_kv, config().tile_kv) *
            (layout.head_dim + layout.head_dim_v) * 2;
      }
      for (int c = 0; c < config().consumers; ++c) {
        const TileRange own = Visited(sequence, row + 64 * c, 64, config().tile_kv);
        want_flops += (own.end - own.begin) * 2 * 64 * config().tile_kv *
                      (layout.head_dim + layout.head_dim_v);
      }
    }
  }
  EXPECT_EQ(loaded, want_loaded * layout.num_heads);
  EXPECT_EQ(stored, want_stored * layout.num_heads);
  EXPECT_EQ(flops, want_flops * layout.num_heads);
  EXPECT_EQ(timeline.lost, 0);
}

TEST_P(TimeStampsTest, RecordingChangesNoBit) {
  RunEmulatedV3(data_->problem, data_->output, {.row = row(), .seed = 3});
  const std::vector<double> plain = Read(data_->output.o);
  GuardedLog log(Blocks(), 1 << 12);
  ASSERT_NO_THROW(Record(3, &log));
  const std::vector<double> recorded = Read(data_->output.o);
  ASSERT_EQ(recorded.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_TRUE(recorded[i] == plain[i] || std::isnan(plain[i])) << i;
  }
  EXPECT_EQ(data_->GuardError(), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, TimeStampsTest,
                         ::testing::Combine(::testing::Range(0, cuda::kForwardV3Rows),
                                            ::testing::ValuesIn(Problems())),
                         [](const auto& test) {
                           return "row_" + std::to_string(std::get<int>(test.param)) + "_" +
                                  std::get<Case>(test.param).name;
                         });

}  // namespace
}  // namespace flashwok::test
