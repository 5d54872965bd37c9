#include "lib/timeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/layout.h"
#include "lib/block_events.h"

namespace flashwok::cli {

void SortEvents(std::vector<TraceEvent>* events, bool nested) {
  std::vector<std::int32_t> order(events->size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t n) {
    const Event& event = (*events)[static_cast<std::size_t>(n)].event;
    return std::pair(event.t0, nested ? -event.duration : 0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });
  std::vector<std::int32_t> place(events->size());
  std::vector<TraceEvent> sorted;
  sorted.reserve(events->size());
  for (std::int32_t n : order) {
    place[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(sorted.size());
    sorted.push_back((*events)[static_cast<std::size_t>(n)]);
  }
  for (TraceEvent& event : sorted) {
    if (event.dependency >= 0) event.dependency = place[static_cast<std::size_t>(event.dependency)];
  }
  *events = std::move(sorted);
}

Timeline MakeTimeline(const std::vector<StampedBlock>& blocks, const Problem& problem,
                      const ForwardOutput& output, const cuda::ForwardV3Config& config) {
  const Layout layout(problem);
  const StampedRun run{layout, output.o.dtype, config};
  Timeline timeline;
  std::int32_t first_track = 0;
  for (const StampedBlock& block : blocks) {
    BlockEvents of_block(run, block, first_track);
    const auto offset = static_cast<std::int32_t>(timeline.events.size());
    for (TraceEvent event : of_block.Take()) {
      if (event.dependency >= 0) event.dependency += offset;
      timeline.events.push_back(event);
    }
    for (TraceTrack& track : of_block.Tracks()) timeline.tracks.push_back(std::move(track));
    timeline.blocks.push_back({{"block", block.number},
                               {"sm", block.multiprocessor},
                               {"clock_mhz", block.mhz},
                               {"marks", block.marks},
                               {"lost", block.lost}});
    timeline.lost += block.lost;
    first_track += BlockEvents::kTracks;
  }
  SortEvents(&timeline.events, false);
  return timeline;
}

}  // namespace flashwok::cli
