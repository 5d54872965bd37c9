// The steps of one thread block of V3 as the events of a trace.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "cuda/config/forward_v3.h"
#include "lib/stamps.h"
#include "lib/timeline.h"

namespace flashwok::cli {

// What the kernel was given, as far as events say something of it.
struct StampedRun {
  const Layout& layout;
  DType out_dtype;
  const cuda::ForwardV3Config& config;
};

class BlockEvents {
 public:
  static constexpr std::int32_t kTracks = 64;  // at most, of a block

  BlockEvents(const StampedRun& run, const StampedBlock& block, std::int32_t first_track);

  // Dependencies are places in this list; in no order.
  std::vector<TraceEvent> Take() { return std::move(events_); }
  std::vector<TraceTrack> Tracks() const;

 private:
  enum Ring { kQ, kK, kV, kRings };
  enum Unit { kScores, kOutput, kStoring, kUnits };
  using Place = std::pair<int, std::int32_t>;  // StampedStep's work, KV tile
  using EventNumber = std::int32_t;

  // A tile that came through a ring.
  struct Passage {
    std::vector<EventNumber> waits;     // of the consumers, for it
    std::vector<EventNumber> products;  // that read it, and their issues
    std::int64_t seen = -1;             // when the first wait ended
    EventNumber freed_by = -1;          // the wait after which the last consumer let go
    EventNumber load = -1;
    int stage = 0;
  };
  // What one consumer has under way.
  struct Walk {
    int consumer = 0;
    std::map<Place, EventNumber> issued[kUnits];
    EventNumber product[kUnits] = {-1, -1, -1};  // the last that ended
    EventNumber softmax = -1, pack = -1, finalize = -1, stage = -1;
  };

  int Stages(Ring ring) const { return ring == kQ ? config_.q_stages : config_.stages; }
  std::int32_t StageTrack(Ring ring, int stage) const;
  std::int32_t UnitTrack(int consumer, Unit unit) const;
  Event& At(EventNumber event) { return events_[static_cast<std::size_t>(event)].event; }
  std::int64_t End(EventNumber event) { return At(event).t0 + At(event).duration; }
  // Either may be absent, -1.
  EventNumber Later(EventNumber a, EventNumber b) {
    return a < 0 || b < 0 ? std::max(a, b) : End(a) < End(b) ? b : a;
  }
  void Depend(EventNumber event, EventNumber on) {
    EventNumber& dependency = events_[static_cast<std::size_t>(event)].dependency;
    dependency = Later(dependency, on);
  }

  EventNumber Add(const StampedStep& step, std::int32_t track);
  // What began with `issue` and was seen to have ended by the end of `wait`.
  EventNumber AddSpan(EventNumber issue, std::int64_t end, EventKind kind, std::int32_t track);
  void Consume(Walk& walk, const StampedStep& step);
  void Compute(Walk& walk, const StampedStep& step, EventNumber event);
  void Issue(Walk& walk, Unit unit, const StampedStep& step, EventNumber event);
  void Finish(Walk& walk, Unit unit, const StampedStep& step, EventNumber event);
  void FinishStore(Walk& walk, const StampedStep& step, EventNumber event);
  void See(Ring ring, const Place& place, EventNumber event);
  void Free(Ring ring, const Place& place, EventNumber event);
  void Produce(const StampedStep& step);
  void ConnectLoads();

  std::int64_t LoadBytes(Ring ring, const StampedStep& step) const;
  std::int64_t StoreBytes(int consumer, std::int32_t batch, std::int32_t q_tile) const;
  bool Masked(int consumer, const StampedStep& step) const;
  std::int64_t FirstRow(std::int32_t batch, std::int32_t q_tile) const;

  const Layout& layout_;
  const DType out_dtype_;
  const cuda::ForwardV3Config& config_;
  const int number_;
  const std::int32_t first_track_;
  std::vector<TraceEvent> events_;
  std::map<Place, Passage> passages_[kRings];
  std::vector<Place> order_[kRings];  // in which it filled the stages
};

}  // namespace flashwok::cli
