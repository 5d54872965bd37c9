#include "lib/block_events.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/dtype.h"
#include "common/tile_range.h"
#include "cuda/attention/schedule.h"

namespace flashwok::cli {
namespace {

using cuda::V3Step;

struct Meaning {
  EventKind kind;
  Role role;
};

Meaning MeaningOf(V3Step step) {
  switch (step) {
    case V3Step::kNextWork: return {EventKind::kSchedule, Role::kQ};
    case V3Step::kPlaceQ:
    case V3Step::kQ: return {EventKind::kWait, Role::kQ};
    case V3Step::kPlaceK:
    case V3Step::kK: return {EventKind::kWait, Role::kK};
    case V3Step::kPlaceV:
    case V3Step::kV: return {EventKind::kWait, Role::kV};
    case V3Step::kLoadQ: return {EventKind::kIssue, Role::kQ};
    case V3Step::kLoadK: return {EventKind::kIssue, Role::kK};
    case V3Step::kLoadV: return {EventKind::kIssue, Role::kV};
    case V3Step::kTurn: return {EventKind::kTurn, Role::kS};
    case V3Step::kIssueS: return {EventKind::kIssue, Role::kS};
    case V3Step::kIssueO: return {EventKind::kIssue, Role::kO};
    case V3Step::kS: return {EventKind::kWait, Role::kS};
    case V3Step::kO:
    case V3Step::kStored: return {EventKind::kWait, Role::kO};
    case V3Step::kSoftmax: return {EventKind::kSoftmax, Role::kP};
    case V3Step::kRescale: return {EventKind::kRescale, Role::kO};
    case V3Step::kPack: return {EventKind::kPack, Role::kP};
    case V3Step::kSkip: return {EventKind::kSkip, Role::kK};
    case V3Step::kClose: return {EventKind::kFinalize, Role::kLse};
    case V3Step::kFinalize: return {EventKind::kFinalize, Role::kO};
    case V3Step::kStage: return {EventKind::kPack, Role::kO};
    case V3Step::kStore:
    case V3Step::kWork: break;
  }
  return {EventKind::kStore, Role::kO};
}

}  // namespace

BlockEvents::BlockEvents(const StampedRun& run, const StampedBlock& block, std::int32_t first_track)
    : layout_(run.layout),
      out_dtype_(run.out_dtype),
      config_(run.config),
      number_(block.number),
      first_track_(first_track) {
  for (int c = 0; c < config_.consumers; ++c) {
    Walk walk;
    walk.consumer = c;
    for (const StampedStep& step : block.roles[static_cast<std::size_t>(c) + 1]) {
      Consume(walk, step);
    }
  }
  for (const StampedStep& step : block.roles[0]) Produce(step);
  ConnectLoads();
}

// --- Tracks: the producer, the consumers, the rings' stages, the units of each consumer. ---------

std::int32_t BlockEvents::StageTrack(Ring ring, int stage) const {
  return 1 + config_.consumers + (ring > kQ ? config_.q_stages : 0) +
         (ring > kK ? config_.stages : 0) + stage;
}

std::int32_t BlockEvents::UnitTrack(int consumer, Unit unit) const {
  return StageTrack(kV, config_.stages) + kUnits * consumer + unit;
}

std::vector<TraceTrack> BlockEvents::Tracks() const {
  std::vector<TraceTrack> tracks;
  const auto add = [&](std::int32_t id, const std::string& name) {
    tracks.push_back({first_track_ + id, fmt::format("block {}: {}", number_, name), number_});
  };
  add(0, "producer");
  for (int c = 0; c < config_.consumers; ++c) add(1 + c, fmt::format("consumer {}", c));
  for (const auto& [ring, name] : {std::pair(kQ, "Q"), {kK, "K"}, {kV, "V"}}) {
    for (int stage = 0; stage < Stages(ring); ++stage) {
      add(StageTrack(ring, stage), fmt::format("copy engine, {} to stage {}", name, stage));
    }
  }
  for (int c = 0; c < config_.consumers; ++c) {
    add(UnitTrack(c, kScores), fmt::format("tensor core, S of consumer {}", c));
    add(UnitTrack(c, kOutput), fmt::format("tensor core, O of consumer {}", c));
    add(UnitTrack(c, kStoring), fmt::format("copy engine, O of consumer {}", c));
  }
  return tracks;
}

// --- What events say beside their times. ---------------------------------------------------------

std::int64_t BlockEvents::FirstRow(std::int32_t batch, std::int32_t q_tile) const {
  return cuda::FirstRow(layout_.At(batch).seqlen_q, config_.tile_q(), q_tile);
}

std::int64_t BlockEvents::LoadBytes(Ring ring, const StampedStep& step) const {
  const Sequence sequence = layout_.At(step.batch);
  const std::int64_t tile = ring == kQ ? config_.tile_q() : config_.tile_kv;
  const std::int64_t first = ring == kQ ? sequence.q_begin + FirstRow(step.batch, step.q_tile)
                                        : sequence.k_begin + tile * step.k_tile;
  // The copy engine clips at both ends of the tensor.
  const std::int64_t total = ring == kQ ? layout_.total_q : layout_.total_k;
  const std::int64_t rows = std::clamp<std::int64_t>(first + tile, 0, total) -
                            std::clamp<std::int64_t>(first, 0, total);
  return rows * (ring == kV ? layout_.head_dim_v : layout_.head_dim) * 2;
}

std::int64_t BlockEvents::StoreBytes(int consumer, std::int32_t batch, std::int32_t q_tile) const {
  const std::int64_t end = FirstRow(batch, q_tile) + 64 * consumer + 64;
  const std::int64_t rows = std::clamp<std::int64_t>(end, 0, std::int64_t{64});
  return rows * layout_.head_dim_v * ItemSize(out_dtype_);
}

bool BlockEvents::Masked(int consumer, const StampedStep& step) const {
  const Sequence sequence = layout_.At(step.batch);
  const std::int64_t first = FirstRow(step.batch, step.q_tile) + 64 * consumer;
  const std::int64_t begin = std::max<std::int64_t>(first, 0), end = first + 64;
  return begin < end &&
         VisitedTiles(sequence.mask, begin, end, config_.tile_kv).NeedsMask(step.k_tile);
}

BlockEvents::EventNumber BlockEvents::Add(const StampedStep& step, std::int32_t track) {
  Event& event = events_.emplace_back().event;
  const Meaning meaning = MeaningOf(step.step);
  event.t0 = step.begin;
  event.duration = step.end - step.begin;
  event.kind = meaning.kind;
  event.role = meaning.role;
  event.track = first_track_ + track;
  event.head =
      step.q_tile < 0 ? -1 : step.batch * static_cast<std::int32_t>(layout_.num_heads) + step.head;
  event.q_tile = step.q_tile;
  event.k_tile = step.k_tile;
  return static_cast<EventNumber>(events_.size()) - 1;
}

BlockEvents::EventNumber BlockEvents::AddSpan(EventNumber issue, std::int64_t end, EventKind kind,
                                              std::int32_t track) {
  TraceEvent span;
  span.event = At(issue);
  span.event.duration = end - span.event.t0;
  span.event.kind = kind;
  span.event.track = first_track_ + track;
  span.dependency = issue;
  span.bound = true;
  events_.push_back(span);
  return static_cast<EventNumber>(events_.size()) - 1;
}

// --- Consumers. ----------------------------------------------------------------------------------

void BlockEvents::See(Ring ring, const Place& place, EventNumber event) {
  Passage& passage = passages_[ring][place];
  passage.waits.push_back(event);
  if (passage.seen < 0 || End(event) < passage.seen) passage.seen = End(event);
}

void BlockEvents::Free(Ring ring, const Place& place, EventNumber event) {
  EventNumber& freed_by = passages_[ring][place].freed_by;
  freed_by = Later(freed_by, event);
}

void BlockEvents::Issue(Walk& walk, Unit unit, const StampedStep& step, EventNumber event) {
  const Place place{step.work, step.k_tile};
  walk.issued[unit][place] = event;
  if (unit == kStoring) return;
  passages_[unit == kScores ? kK : kV][place].products.push_back(event);
  if (unit == kScores) passages_[kQ][{step.work, -1}].products.push_back(event);
  if (unit == kOutput) Depend(event, walk.pack);
}

// A product that was waited for.
void BlockEvents::Finish(Walk& walk, Unit unit, const StampedStep& step, EventNumber event) {
  const Place place{step.work, step.k_tile};
  const auto issued = walk.issued[unit].find(place);
  if (issued == walk.issued[unit].end()) return;
  const EventNumber product =
      AddSpan(issued->second, step.end, EventKind::kProduct, UnitTrack(walk.consumer, unit));
  const std::int64_t depth = unit == kScores ? layout_.head_dim : layout_.head_dim_v;
  At(product).flops = 2 * 64 * config_.tile_kv * depth;
  walk.issued[unit].erase(issued);
  walk.product[unit] = product;
  const Ring ring = unit == kScores ? kK : kV;
  passages_[ring][place].products.push_back(product);
  Depend(event, product);
  Free(ring, place, event);
  // Without a second place the next Q comes when no product needs this one.
  if (unit == kScores && config_.q_stages == 1) Free(kQ, {step.work, -1}, event);
}

// The store of the work before, whose source the copy engine has read, if it went that way.
void BlockEvents::FinishStore(Walk& walk, const StampedStep& step, EventNumber event) {
  if (config_.q_stages > 1) Free(kQ, {step.work - 1, -1}, event);
  if (walk.issued[kStoring].empty()) return;
  const EventNumber issue = walk.issued[kStoring].begin()->second;
  walk.issued[kStoring].clear();
  const EventNumber store =
      AddSpan(issue, step.end, EventKind::kStore, UnitTrack(walk.consumer, kStoring));
  const Event& span = At(store);
  const auto batch = span.head / static_cast<std::int32_t>(layout_.num_heads);
  At(store).bytes = StoreBytes(walk.consumer, batch, span.q_tile);
  At(event).head = span.head;
  At(event).q_tile = span.q_tile;
  Depend(event, store);
}

void BlockEvents::Compute(Walk& walk, const StampedStep& step, EventNumber event) {
  switch (step.step) {
    case V3Step::kSoftmax:
      walk.softmax = event;
      At(event).masked = Masked(walk.consumer, step) ? 1 : 0;
      Depend(event, walk.product[kScores]);
      break;
    case V3Step::kRescale:
    case V3Step::kClose: Depend(event, walk.softmax); break;
    case V3Step::kPack:
      walk.pack = event;
      Depend(event, walk.softmax);
      break;
    case V3Step::kFinalize:
      walk.finalize = event;
      walk.stage = -1;
      Depend(event, walk.product[kOutput]);
      walk.product[kOutput] = -1;
      break;
    case V3Step::kStage:
      walk.stage = event;
      Depend(event, walk.finalize);
      break;
    default:  // kStore
      Depend(event, walk.stage >= 0 ? walk.stage : walk.finalize);
      if (walk.stage >= 0) {
        At(event).kind = EventKind::kIssue;
        Issue(walk, kStoring, step, event);
      } else {
        At(event).bytes = StoreBytes(walk.consumer, step.batch, step.q_tile);
      }
  }
}

void BlockEvents::Consume(Walk& walk, const StampedStep& step) {
  const EventNumber event = Add(step, 1 + walk.consumer);
  const Place place{step.work, step.k_tile};
  switch (step.step) {
    case V3Step::kQ:
      if (step.q_tile < 0) return;
      See(kQ, place, event);
      if (config_.q_stages == 1) Free(kQ, place, event);
      break;
    case V3Step::kK: See(kK, place, event); break;
    case V3Step::kV: See(kV, place, event); break;
    case V3Step::kTurn: break;
    case V3Step::kIssueS: Issue(walk, kScores, step, event); break;
    case V3Step::kIssueO: Issue(walk, kOutput, step, event); break;
    case V3Step::kS: Finish(walk, kScores, step, event); break;
    case V3Step::kO: Finish(walk, kOutput, step, event); break;
    case V3Step::kSkip:
      for (Ring ring : {kK, kV}) {
        See(ring, place, event);
        Free(ring, place, event);
      }
      break;
    case V3Step::kStored: FinishStore(walk, step, event); break;
    default: Compute(walk, step, event);
  }
}

// --- The producer. -------------------------------------------------------------------------------

void BlockEvents::Produce(const StampedStep& step) {
  const EventNumber event = Add(step, 0);
  if (step.step == V3Step::kNextWork) return;
  const bool waits =
      step.step == V3Step::kPlaceQ || step.step == V3Step::kPlaceK || step.step == V3Step::kPlaceV;
  const Ring ring = At(event).role == Role::kQ ? kQ : At(event).role == Role::kK ? kK : kV;
  const auto stages = static_cast<std::size_t>(Stages(ring));
  const int stage = static_cast<int>(order_[ring].size() % stages);
  At(event).stage = static_cast<std::uint8_t>(stage);
  if (waits) {
    if (order_[ring].size() < stages) return;  // the first round is free
    Depend(event, passages_[ring][order_[ring][order_[ring].size() - stages]].freed_by);
    return;
  }
  const Place place{step.work, step.k_tile};
  order_[ring].push_back(place);
  Passage& passage = passages_[ring][place];
  passage.stage = stage;
  if (passage.seen < 0) return;  // what became of it was not kept
  passage.load = AddSpan(event, passage.seen, EventKind::kLoad, StageTrack(ring, stage));
  At(passage.load).bytes = LoadBytes(ring, step);
}

// The consumers' waits and products to the loads that they needed.
void BlockEvents::ConnectLoads() {
  for (Ring ring : {kQ, kK, kV}) {
    for (const auto& [place, passage] : passages_[ring]) {
      for (EventNumber wait : passage.waits) {
        At(wait).stage = static_cast<std::uint8_t>(passage.stage);
        Depend(wait, passage.load);
      }
      for (EventNumber product : passage.products) {
        if (ring != kQ) At(product).stage = static_cast<std::uint8_t>(passage.stage);
        Depend(product, passage.load);
      }
    }
  }
}

}  // namespace flashwok::cli
