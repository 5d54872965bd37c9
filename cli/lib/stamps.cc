#include "lib/stamps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/command.h"

namespace flashwok::cli {
namespace {

using cuda::StampAnchor;
using cuda::StampLog;
using cuda::StampMark;
using cuda::StampTrack;
using cuda::V3Step;

// Cycles of one multiprocessor as nanoseconds: a line through its first and its last anchor.
struct ClockLine {
  StampAnchor begin, end;

  double rate() const {
    return static_cast<double>(end.nanoseconds - begin.nanoseconds) /
           static_cast<double>(end.clock - begin.clock);
  }
  std::int64_t At(std::uint64_t clock, std::uint64_t origin) const {
    const auto cycles = static_cast<double>(static_cast<std::int64_t>(clock - begin.clock));
    return static_cast<std::int64_t>(begin.nanoseconds - origin) + std::llround(cycles * rate());
  }
};

bool Ran(const StampTrack& track) { return track.begin.clock != 0 || track.count != 0; }

ClockLine FindLine(const StampTrack (&tracks)[StampLog::kRoles], int number) {
  ClockLine line;
  line.begin.clock = std::numeric_limits<std::uint64_t>::max();
  for (const StampTrack& track : tracks) {
    if (!Ran(track)) continue;
    if (track.begin.clock < line.begin.clock) line.begin = track.begin;
    if (track.end.clock > line.end.clock) line.end = track.end;
  }
  if (line.end.clock == 0) {
    throw BadInput(fmt::format("--blocks: is {}, but the launch has no such block", number));
  }
  if (line.end.clock <= line.begin.clock || line.end.nanoseconds <= line.begin.nanoseconds) {
    throw Failure(
        fmt::format("block {}: its clocks moved by {} cycles and {} ns", number,
                    static_cast<std::int64_t>(line.end.clock - line.begin.clock),
                    static_cast<std::int64_t>(line.end.nanoseconds - line.begin.nanoseconds)));
  }
  return line;
}

// Of marks that name a work tile.
bool SameWork(const StampMark& a, const StampMark& b) {
  return a.tile == b.tile && (a.tile < 0 || a.clock == b.clock);
}

std::vector<StampedStep> ReadRole(const StampTrack& track, const StampMark* marks,
                                  std::uint32_t kept, const ClockLine& line, std::uint64_t origin) {
  std::vector<StampedStep> steps;
  std::vector<const StampMark*> works;
  int stored = 0;
  std::int64_t end = line.At(track.begin.clock, origin);
  for (const StampMark* mark = marks; mark != marks + kept; ++mark) {
    if (mark->step == V3Step::kWork) {
      if (works.empty() || !SameWork(*works.back(), *mark)) works.push_back(mark);
      continue;
    }
    StampedStep& step = steps.emplace_back();
    step.step = mark->step;
    step.begin = end;
    step.end = end = line.At(mark->clock, origin);
    step.k_tile = mark->tile;
    step.work = static_cast<int>(works.size()) - 1;
    if (cuda::OfOutput(mark->step)) step.work = std::min(step.work, stored);
    if (mark->step == V3Step::kStore) ++stored;
    if (step.work < 0) continue;
    const StampMark& work = *works[static_cast<std::size_t>(step.work)];
    if (work.tile < 0) continue;
    step.batch = static_cast<std::int32_t>(work.clock >> 32);
    step.head = static_cast<std::int32_t>(work.clock & 0xFFFFFFFFu);
    step.q_tile = work.tile;
  }
  return steps;
}

}  // namespace

std::vector<StampedBlock> ReadStamps(const std::vector<std::byte>& log) {
  StampLog head;
  std::memcpy(&head, log.data(), sizeof(head));
  std::vector<StampMark> marks((log.size() - sizeof(head)) / sizeof(StampMark));
  std::memcpy(marks.data(), log.data() + sizeof(head), marks.size() * sizeof(StampMark));
  std::vector<ClockLine> lines;
  std::uint64_t origin = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t slot = 0; slot < head.num_blocks; ++slot) {
    lines.push_back(FindLine(head.tracks[slot], static_cast<int>(head.blocks[slot])));
    origin = std::min(origin, lines.back().begin.nanoseconds);
  }
  std::vector<StampedBlock> blocks;
  for (std::uint32_t slot = 0; slot < head.num_blocks; ++slot) {
    const ClockLine& line = lines[slot];
    StampedBlock& block = blocks.emplace_back();
    block.number = static_cast<int>(head.blocks[slot]);
    block.mhz = 1e3 / line.rate();
    for (std::size_t role = 0; role < StampLog::kRoles; ++role) {
      const StampTrack& track = head.tracks[slot][role];
      if (!Ran(track)) continue;
      const std::uint32_t kept = std::min(track.count, head.capacity);
      block.multiprocessor = static_cast<int>(track.multiprocessor);
      block.marks += track.count;
      block.lost += track.count - kept;
      block.roles[role] =
          ReadRole(track, marks.data() + (slot * StampLog::kRoles + role) * head.capacity, kept,
                   line, origin);
    }
  }
  return blocks;
}

}  // namespace flashwok::cli
