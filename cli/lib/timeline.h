// What V3's time stamps say, as the events of a trace: what each role did, and what the copy engine
// and the tensor core did meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/config/forward_v3.h"
#include "flashwok/attention.h"
#include "lib/stamps.h"
#include "lib/text.h"

namespace flashwok::cli {

struct TraceEvent {
  Event event;
  std::int32_t dependency = -1;  // the event whose result this one waited for
  bool bound = false;  // asynchronous, seen to have ended by then: it may have ended sooner
};

struct TraceTrack {
  std::int32_t id = 0;
  std::string name;
  int block = -1;  // of a GPU's grid
};

// In the order of their starts; `nested`: an enclosing one before those within it, otherwise those
// of one start as they are.
void SortEvents(std::vector<TraceEvent>* events, bool nested);

struct Timeline {
  std::vector<TraceEvent> events;
  std::vector<TraceTrack> tracks;
  Json blocks = Json::array();  // number, sm, mhz, marks and lost of each
  std::int64_t lost = 0;        // marks for which the log had no room
  // Of the recorded launch, and of launches before it that were not.
  double seconds = 0.0, plain_seconds = 0.0;
};

// `problem` and `output` on the host, as the kernel with this configuration ran them.
Timeline MakeTimeline(const std::vector<StampedBlock>& blocks, const Problem& problem,
                      const ForwardOutput& output, const cuda::ForwardV3Config& config);

}  // namespace flashwok::cli
