// What is made of V3's time stamps: logs written by hand, whose times are known.
#include "lib/timeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "lib/command.h"
#include "lib/stamps.h"

namespace flashwok::test {
namespace {

using cli::StampedBlock;
using cli::Timeline;
using cli::TraceEvent;
using cuda::StampAnchor;
using cuda::StampLog;
using cuda::StampMark;
using cuda::V3Step;

constexpr cuda::ForwardV3Config kConfig{128, 128, 2, 128, 2, 2, true};

// A multiprocessor's clock: where it stood at 1,000 ns, and its cycles a ns.
struct Sm {
  std::uint64_t start;
  double rate;
  std::uint64_t At(double ns) const {
    return start + static_cast<std::uint64_t>(std::llround((ns - 1000.0) * rate));
  }
};

// Roles of blocks that end their steps at given times.
class LogWriter {
 public:
  LogWriter(std::vector<int> blocks, int capacity) : capacity_(capacity) {
    head_.num_blocks = static_cast<std::uint32_t>(blocks.size());
    head_.capacity = static_cast<std::uint32_t>(capacity);
    std::copy(blocks.begin(), blocks.end(), head_.blocks);
    marks_.resize(blocks.size() * StampLog::kRoles * static_cast<std::size_t>(capacity));
  }

  struct Done {
    V3Step step;
    int tile;
    double ns;
  };
  // From `begin` to `end`; a mark kWork carries its work tile's batch, head and Q tile.
  void Role(int slot, int role, const Sm& sm, double begin, double end,
            const std::vector<std::pair<std::optional<std::array<int, 3>>, Done>>& steps) {
    cuda::StampTrack& track = head_.tracks[slot][role];
    track.begin = {sm.At(begin), static_cast<std::uint64_t>(begin)};
    track.end = {sm.At(end), static_cast<std::uint64_t>(end)};
    track.multiprocessor = 40 + static_cast<std::uint32_t>(slot);
    const auto put = [&](const StampMark& mark) {
      const auto at =
          (static_cast<std::size_t>(slot) * StampLog::kRoles + static_cast<std::size_t>(role)) *
              static_cast<std::size_t>(capacity_) +
          track.count;
      if (track.count < head_.capacity) marks_[at] = mark;
      ++track.count;
    };
    for (const auto& [work, done] : steps) {
      if (work) {
        put({static_cast<std::uint64_t>((*work)[0]) << 32 | static_cast<std::uint32_t>((*work)[1]),
             V3Step::kWork, (*work)[2]});
      }
      put({sm.At(done.ns), done.step, done.tile});
    }
  }
  StampLog& head() { return head_; }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> bytes(sizeof(head_) + marks_.size() * sizeof(StampMark));
    std::memcpy(bytes.data(), &head_, sizeof(head_));
    std::memcpy(bytes.data() + sizeof(head_), marks_.data(), marks_.size() * sizeof(StampMark));
    return bytes;
  }

 private:
  const int capacity_;
  StampLog head_;
  std::vector<StampMark> marks_;
};

constexpr std::array<int, 3> kWork = {1, 1, 0};  // batch, head, Q tile
constexpr std::array<int, 3> kEnd = {0, 0, -1};
const std::nullopt_t kSame = std::nullopt;

// One work tile of three KV tiles; consumer 1 passes over the first.
void WriteBlock(LogWriter* log, int slot, const Sm& sm) {
  log->Role(slot, 0, sm, 1000, 2000,
            {{kSame, {V3Step::kNextWork, -1, 1010}},
             {kWork, {V3Step::kPlaceK, 2, 1021}},
             {kSame, {V3Step::kLoadK, 2, 1030}},
             {kSame, {V3Step::kPlaceQ, -1, 1031}},
             {kSame, {V3Step::kLoadQ, -1, 1035}},
             {kSame, {V3Step::kPlaceV, 2, 1036}},
             {kSame, {V3Step::kLoadV, 2, 1040}},
             {kSame, {V3Step::kPlaceK, 1, 1041}},
             {kSame, {V3Step::kLoadK, 1, 1050}},
             {kSame, {V3Step::kPlaceV, 1, 1051}},
             {kSame, {V3Step::kLoadV, 1, 1060}},
             {kSame, {V3Step::kPlaceK, 0, 1310}},
             {kSame, {V3Step::kLoadK, 0, 1320}},
             {kSame, {V3Step::kPlaceV, 0, 1510}},
             {kSame, {V3Step::kLoadV, 0, 1520}},
             {kSame, {V3Step::kNextWork, -1, 1530}},
             {kEnd, {V3Step::kPlaceQ, -1, 1990}}});
  log->Role(slot, 1, sm, 1005, 2010,
            {{kWork, {V3Step::kQ, -1, 1200}},
             {kSame, {V3Step::kK, 2, 1210}},
             {kSame, {V3Step::kTurn, 2, 1211}},
             {kSame, {V3Step::kIssueS, 2, 1220}},
             {kSame, {V3Step::kS, 2, 1300}},
             {kSame, {V3Step::kSoftmax, 2, 1350}},
             {kSame, {V3Step::kPack, 2, 1360}},
             {kSame, {V3Step::kV, 2, 1361}},
             {kSame, {V3Step::kIssueO, 2, 1370}},
             {kSame, {V3Step::kO, 2, 1500}},
             {kSame, {V3Step::kClose, -1, 1510}},
             {kSame, {V3Step::kFinalize, -1, 1600}},
             {kSame, {V3Step::kStage, -1, 1620}},
             {kSame, {V3Step::kStore, -1, 1630}},
             {kEnd, {V3Step::kQ, -1, 1640}},
             {kSame, {V3Step::kStored, -1, 1700}}});
  log->Role(slot, 2, sm, 1006, 2011,
            {{kWork, {V3Step::kQ, -1, 1190}},
             {kSame, {V3Step::kSkip, 2, 1305}},
             {kSame, {V3Step::kK, 1, 1306}},
             {kSame, {V3Step::kStore, -1, 1640}}});
}

class TimelineTest : public ::testing::Test {
 protected:
  TimelineTest() {
    const auto tensor = [](std::int64_t batch, std::int64_t rows, std::int64_t heads) {
      return Tensor::Contiguous(nullptr, DType::kBFloat16, {batch, rows, heads, 128});
    };
    problem_.q = tensor(2, 100, 4);
    problem_.k = problem_.v = tensor(2, 300, 2);
    output_.o = tensor(2, 100, 4);
  }

  Timeline Make(const std::vector<std::byte>& log) const {
    return cli::MakeTimeline(cli::ReadStamps(log), problem_, output_, kConfig);
  }
  // The one event of that kind on a track.
  static std::size_t Find(const Timeline& timeline, std::int32_t track, EventKind kind, Role role,
                          int k_tile) {
    std::size_t found = timeline.events.size();
    for (std::size_t n = 0; n < timeline.events.size(); ++n) {
      const Event& e = timeline.events[n].event;
      if (e.track == track && e.kind == kind && e.role == role && e.k_tile == k_tile) {
        EXPECT_EQ(found, timeline.events.size()) << "twice";
        found = n;
      }
    }
    EXPECT_LT(found, timeline.events.size());
    return found;
  }
  static void ExpectTimes(const TraceEvent& event, std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(event.event.t0, begin);
    EXPECT_EQ(event.event.t0 + event.event.duration, end);
  }
  static std::int32_t Track(const Timeline& timeline, const std::string& name) {
    for (const cli::TraceTrack& track : timeline.tracks) {
      if (track.name == name) return track.id;
    }
    ADD_FAILURE() << name;
    return -1;
  }

  Problem problem_;
  ForwardOutput output_;
};

TEST_F(TimelineTest, EachClockIsPlacedInTheCommonTime) {
  LogWriter log({5, 9}, 64);
  WriteBlock(&log, 0, {.start = 1'000'000, .rate = 2.0});
  WriteBlock(&log, 1, {.start = 77, .rate = 1.5});
  const std::vector<StampedBlock> blocks = cli::ReadStamps(log.Bytes());
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].number, 5);
  EXPECT_EQ(blocks[1].multiprocessor, 41);
  EXPECT_NEAR(blocks[0].mhz, 2000.0, 1.0);
  EXPECT_NEAR(blocks[1].mhz, 1500.0, 1.0);
  for (const StampedBlock& block : blocks) {
    const auto& steps = block.roles[1];
    ASSERT_EQ(steps.size(), 16u);
    EXPECT_NEAR(static_cast<double>(steps[0].begin), 5.0, 1.0);
    EXPECT_NEAR(static_cast<double>(steps[4].begin), 220.0, 1.0);
    EXPECT_NEAR(static_cast<double>(steps[4].end), 300.0, 1.0);
    EXPECT_EQ(steps[4].step, V3Step::kS);
    EXPECT_EQ(steps[4].batch, 1);
    EXPECT_EQ(steps[4].q_tile, 0);
    EXPECT_EQ(steps[4].k_tile, 2);
    EXPECT_EQ(steps[14].q_tile, -1);
    EXPECT_TRUE(block.roles[3].empty());
  }
}

TEST_F(TimelineTest, AsynchronousWorkLastsUntilItIsSeen) {
  LogWriter log({5}, 64);
  WriteBlock(&log, 0, {.start = 1'000'000, .rate = 2.0});
  const Timeline timeline = Make(log.Bytes());
  const auto& events = timeline.events;
  const std::int32_t stage0 = Track(timeline, "block 5: copy engine, K to stage 0");
  // Consumer 0 saw K of tile 2 first; of tile 1 only consumer 1 has.
  const std::size_t load = Find(timeline, stage0, EventKind::kLoad, Role::kK, 2);
  ExpectTimes(events[load], 21, 210);
  EXPECT_TRUE(events[load].bound);
  EXPECT_EQ(events[load].event.bytes, (300 - 2 * 128) * 128 * 2);
  EXPECT_EQ(events[load].event.head, 5);
  const std::size_t next = Find(timeline, Track(timeline, "block 5: copy engine, K to stage 1"),
                                EventKind::kLoad, Role::kK, 1);
  ExpectTimes(events[next], 41, 306);
  EXPECT_EQ(events[next].event.bytes, 128 * 128 * 2);
  EXPECT_EQ(events[next].event.stage, 1);

  // The third K waits for the place of the first, which consumer 1 gave back last.
  const std::size_t place = Find(timeline, 0, EventKind::kWait, Role::kK, 0);
  ExpectTimes(events[place], 60, 310);
  EXPECT_EQ(events[place].event.stage, 0);
  const std::int32_t consumer1 = Track(timeline, "block 5: consumer 1");
  EXPECT_EQ(static_cast<std::size_t>(events[place].dependency),
            Find(timeline, consumer1, EventKind::kSkip, Role::kK, 2));
  // Nobody is recorded to have seen it.
  for (const TraceEvent& event : events) {
    EXPECT_FALSE(event.event.kind == EventKind::kLoad && event.event.k_tile == 0);
  }

  const std::int32_t consumer0 = Track(timeline, "block 5: consumer 0");
  const std::size_t wait_k = Find(timeline, consumer0, EventKind::kWait, Role::kK, 2);
  EXPECT_EQ(static_cast<std::size_t>(events[wait_k].dependency), load);
  const std::size_t product =
      Find(timeline, Track(timeline, "block 5: tensor core, S of consumer 0"), EventKind::kProduct,
           Role::kS, 2);
  ExpectTimes(events[product], 211, 300);
  EXPECT_EQ(events[product].event.flops, 2 * 64 * 128 * 128);
  const std::size_t softmax = Find(timeline, consumer0, EventKind::kSoftmax, Role::kP, 2);
  EXPECT_EQ(static_cast<std::size_t>(events[softmax].dependency), product);
  EXPECT_EQ(events[softmax].event.masked, 1);  // beyond key 300
  const std::size_t value = Find(timeline, Track(timeline, "block 5: tensor core, O of consumer 0"),
                                 EventKind::kProduct, Role::kO, 2);
  ExpectTimes(events[value], 361, 500);

  // The store: from its issue until its source had been read, of the 36 rows that exist of 64.
  const std::size_t store = Find(timeline, Track(timeline, "block 5: copy engine, O of consumer 0"),
                                 EventKind::kStore, Role::kO, -1);
  ExpectTimes(events[store], 620, 700);
  EXPECT_EQ(events[store].event.bytes, 36 * 128 * 2);
  // Consumer 1 stored its rows itself.
  const std::size_t own = Find(timeline, consumer1, EventKind::kStore, Role::kO, -1);
  EXPECT_FALSE(events[own].bound);
  EXPECT_EQ(events[own].event.bytes, 64 * 128 * 2);
}

// Two works, of which the second's first S and softmax run under the first's last P V; then the
// same without: its Q is named while the first is not stored, and once more after that.
TEST_F(TimelineTest, TheNextWorkBeginsBeforeThisOneEnds) {
  const std::array<int, 3> first = {0, 3, 1}, second = {1, 0, 0}, third = {1, 2, 0};
  struct Want {
    V3Step step;
    int work;
  };
  LogWriter log({0}, 64);
  const std::vector<std::pair<std::optional<std::array<int, 3>>, Want>> steps = {
      {first, {V3Step::kQ, 0}},       {kSame, {V3Step::kSoftmax, 0}},
      {kSame, {V3Step::kPack, 0}},    {kSame, {V3Step::kStored, 0}},
      {second, {V3Step::kQ, 1}},      {kSame, {V3Step::kK, 1}},
      {kSame, {V3Step::kTurn, 1}},    {kSame, {V3Step::kIssueS, 1}},
      {kSame, {V3Step::kV, 0}},       {kSame, {V3Step::kIssueO, 0}},
      {kSame, {V3Step::kS, 1}},       {kSame, {V3Step::kClose, 0}},
      {kSame, {V3Step::kSoftmax, 1}}, {kSame, {V3Step::kO, 0}},
      {kSame, {V3Step::kPack, 1}},    {kSame, {V3Step::kFinalize, 0}},
      {kSame, {V3Step::kStage, 0}},   {kSame, {V3Step::kStore, 0}},
      {kSame, {V3Step::kStored, 1}},  {third, {V3Step::kQ, 2}},
      {kSame, {V3Step::kV, 1}},       {kSame, {V3Step::kIssueO, 1}},
      {kSame, {V3Step::kO, 1}},       {kSame, {V3Step::kSkip, 1}},
      {kSame, {V3Step::kClose, 1}},   {kSame, {V3Step::kFinalize, 1}},
      {kSame, {V3Step::kStore, 1}},   {third, {V3Step::kQ, 2}},
      {kSame, {V3Step::kSkip, 2}},    {kSame, {V3Step::kStore, 2}},
      {kEnd, {V3Step::kQ, 3}},        {kSame, {V3Step::kStored, 3}}};
  std::vector<std::pair<std::optional<std::array<int, 3>>, LogWriter::Done>> written;
  for (const auto& [work, want] : steps) {
    written.push_back({work, {want.step, -1, 1000.0 + 10.0 * static_cast<double>(written.size())}});
  }
  log.Role(0, 1, {.start = 500, .rate = 2.0}, 1000, 2000, written);
  const std::vector<cli::StampedStep> read = cli::ReadStamps(log.Bytes())[0].roles[1];
  ASSERT_EQ(read.size(), steps.size());
  const std::array<int, 3> works[] = {first, second, third, {-1, -1, -1}};
  for (std::size_t n = 0; n < steps.size(); ++n) {
    SCOPED_TRACE(n);
    EXPECT_EQ(read[n].work, steps[n].second.work);
    EXPECT_EQ((std::array<int, 3>{read[n].batch, read[n].head, read[n].q_tile}),
              works[steps[n].second.work]);
  }
}

TEST_F(TimelineTest, LostMarksAreCounted) {
  LogWriter log({5}, 6);
  WriteBlock(&log, 0, {.start = 0x7000, .rate = 1.8});
  const Timeline timeline = Make(log.Bytes());
  // 19 marks of the producer, 18 and 5 of the consumers; the work tiles are marks too.
  EXPECT_EQ(timeline.lost, (19 - 6) + (18 - 6) + 0);
  EXPECT_EQ(timeline.blocks[0]["lost"], timeline.lost);
  EXPECT_EQ(timeline.blocks[0]["marks"], 19 + 18 + 5);
  // Steps beside the work tile's mark, as many as have room; loads of Q and K were seen.
  EXPECT_EQ(std::count_if(timeline.events.begin(), timeline.events.end(),
                          [](const TraceEvent& event) { return !event.bound; }),
            5 + 5 + 4);
}

TEST_F(TimelineTest, ClocksThatStandStillAreAFailure) {
  const Sm sm{.start = 500, .rate = 2.0};
  for (bool cycles : {true, false}) {
    LogWriter log({5}, 64);
    log.Role(0, 0, sm, 1000, 1100, {});
    cuda::StampTrack& track = log.head().tracks[0][0];
    if (cycles) {
      track.end.clock = track.begin.clock;
    } else {
      track.end.nanoseconds = track.begin.nanoseconds;
    }
    EXPECT_THROW(cli::ReadStamps(log.Bytes()), cli::Failure);
  }
}

TEST_F(TimelineTest, ABlockThatDidNotRunIsRefused) {
  LogWriter log({5, 6}, 64);
  WriteBlock(&log, 0, {.start = 500, .rate = 2.0});
  try {
    cli::ReadStamps(log.Bytes());
    FAIL();
  } catch (const cli::BadInput& refusal) {
    EXPECT_NE(std::string(refusal.what()).find("--blocks: is 6"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashwok::test
