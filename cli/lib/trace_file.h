// Traces: recorded from a run, written as fw-trace/1 (docs/trace.md) or for Chrome and Perfetto.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "flashwok/attention.h"
#include "lib/text.h"
#include "lib/timeline.h"

namespace flashwok::cli {

// Keeps every event; each track is written by its own worker alone.
class Recorder : public Observer {
 public:
  static constexpr std::int64_t kMaxEvents = std::int64_t{1} << 22;

  Recorder();
  void OnEvent(const Event& event) override;

  // True once events were left out, because there were more than kMaxEvents.
  bool full() const { return count_ > kMaxEvents; }
  // All events in the order of their starts, with their dependencies.
  std::vector<TraceEvent> Take();

 private:
  std::vector<std::vector<Event>> tracks_;
  std::atomic<std::int64_t> count_{0};
};

// What the header says of the run, beside the layout of the events.
struct TraceRun {
  Problem problem;
  Pass pass = Pass::kForward;
  PlanResult plan;
  Device device;
  const Timeline* timeline = nullptr;  // of a CUDA device, whose events they are
};

Json TraceHeader(const TraceRun& run, const std::vector<TraceEvent>& events);
void WriteTrace(const std::string& path, const TraceRun& run,
                const std::vector<TraceEvent>& events);
// A process, and two threads a worker: copies, and everything else. Of a CUDA device, a process a
// block and a thread a track.
void WriteChromeTrace(const std::string& path, const TraceRun& run,
                      const std::vector<TraceEvent>& events);

}  // namespace flashwok::cli
