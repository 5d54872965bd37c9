#include "lib/trace_file.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>

#include "api/validate.h"
#include "lib/counter.h"
#include "lib/machine.h"
#include "lib/workload.h"

namespace flashwok::cli {
namespace {

constexpr std::string_view kMagic = "FWTRACE1";
constexpr int kEventBytes = 56;
constexpr int kNumKinds = static_cast<int>(EventKind::kSchedule) + 1;
constexpr std::size_t kLookBack = 64;

bool IsCopy(EventKind kind) { return kind == EventKind::kLoad || kind == EventKind::kStore; }

// The two tiles that a product multiplies, by the tensor that it adds to.
bool IsOperand(Role operand, Role product) {
  const auto either = [&](Role a, Role b) { return operand == a || operand == b; };
  switch (product) {
    case Role::kS: return either(Role::kQ, Role::kK);
    case Role::kDP: return either(Role::kDO, Role::kV);
    case Role::kO: return either(Role::kP, Role::kV);
    case Role::kDV: return either(Role::kP, Role::kDO);
    case Role::kDQ: return either(Role::kDS, Role::kK);
    case Role::kDK: return either(Role::kDS, Role::kQ);
    default: return false;
  }
}

bool IsStatistic(Role role) {
  return role == Role::kLse || role == Role::kRowMax || role == Role::kRowSum;
}

// Whether `later` uses what `earlier`, an event of the same track before it, has made.
bool Feeds(const Event& earlier, const Event& later) {
  const auto same = [](std::int32_t a, std::int32_t b) { return a == b || a < 0 || b < 0; };
  if (earlier.head != later.head || !same(earlier.q_tile, later.q_tile) ||
      !same(earlier.k_tile, later.k_tile)) {
    return false;
  }
  const bool computed = !IsCopy(earlier.kind) && earlier.kind != EventKind::kSkip;
  const bool product = earlier.kind == EventKind::kProduct;
  const bool softmax = earlier.kind == EventKind::kSoftmax;
  switch (later.kind) {
    case EventKind::kProduct:
      return (softmax || earlier.kind == EventKind::kLoad) && IsOperand(earlier.role, later.role);
    case EventKind::kSoftmax:
      return (product || earlier.kind == EventKind::kLoad) &&
             (earlier.role == Role::kS || earlier.role == Role::kDP);
    case EventKind::kRescale: return softmax;
    case EventKind::kFinalize: return earlier.role == Role::kO && earlier.kind != EventKind::kStore;
    case EventKind::kStore:
      if (IsStatistic(later.role)) return softmax || earlier.kind == EventKind::kFinalize;
      return computed && earlier.role == later.role;
    default: return false;
  }
}

void FindDependencies(std::vector<TraceEvent>* events) {
  std::vector<std::vector<std::int32_t>> tracks(kMaxThreads);
  for (std::size_t i = 0; i < events->size(); ++i) {
    TraceEvent& later = (*events)[i];
    std::vector<std::int32_t>& track = tracks[static_cast<std::size_t>(later.event.track)];
    const std::size_t first = track.size() > kLookBack ? track.size() - kLookBack : 0;
    for (std::size_t n = track.size(); n > first; --n) {
      if (!Feeds((*events)[static_cast<std::size_t>(track[n - 1])].event, later.event)) continue;
      later.dependency = track[n - 1];
      break;
    }
    track.push_back(static_cast<std::int32_t>(i));
  }
}

// Little-endian, whatever the machine.
template <typename T>
void Put(std::string* bytes, T value) {
  const auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) *bytes += static_cast<char>(bits >> (8 * i));
}

Json Fields() {
  Json fields = Json::array();
  int offset = 0;
  const auto add = [&](const char* type, int size, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      fields.push_back({{"name", name}, {"type", type}, {"offset", offset}});
      offset += size;
    }
  };
  add("i64", 8, {"t0", "duration", "bytes", "flops"});
  add("i32", 4, {"dependency", "track", "head", "q_tile", "k_tile"});
  add("u8", 1, {"kind", "tensor", "stage", "flags"});
  return fields;
}

Json Workers(const std::vector<TraceEvent>& events) {
  std::set<std::int32_t> ids;
  for (const TraceEvent& event : events) ids.insert(event.event.track);
  Json tracks = Json::array();
  for (std::int32_t id : ids) {
    tracks.push_back({{"id", id}, {"name", fmt::format("worker {}", id)}});
  }
  return tracks;
}

// What the header says otherwise, and more, of a CUDA device.
void DescribeTimeline(const TraceRun& run, Json* header) {
  const Timeline& timeline = *run.timeline;
  Json tracks = Json::array();
  for (const TraceTrack& track : timeline.tracks) {
    tracks.push_back({{"id", track.id}, {"name", track.name}, {"block", track.block}});
  }
  header->erase("threads");
  (*header)["date"] = Today();
  (*header)["machine"] = CudaDevicesJson().at(static_cast<std::size_t>(run.device.index));
  (*header)["clock"] = {{"unit", "ns"},
                        {"kind", "clock64 of each SM, placed by globaltimer"},
                        {"origin", "first time stamp"}};
  (*header)["tracks"] = tracks;
  (*header)["blocks"] = timeline.blocks;
  (*header)["lost"] = timeline.lost;
  (*header)["launch_ms"] = {{"recorded", timeline.seconds * 1e3},
                            {"unrecorded", timeline.plain_seconds * 1e3}};
}

}  // namespace

Recorder::Recorder() : tracks_(kMaxThreads) {}

void Recorder::OnEvent(const Event& event) {
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMaxEvents) return;
  tracks_[static_cast<std::size_t>(event.track)].push_back(event);
}

std::vector<TraceEvent> Recorder::Take() {
  std::vector<TraceEvent> events;
  for (const std::vector<Event>& track : tracks_) {
    for (const Event& event : track) events.push_back({event, -1});
  }
  SortEvents(&events, true);
  FindDependencies(&events);
  return events;
}

Json TraceHeader(const TraceRun& run, const std::vector<TraceEvent>& events) {
  Json kinds = Json::array();
  for (int i = 0; i < kNumKinds; ++i) kinds.push_back(Name(static_cast<EventKind>(i)));
  Json tensors = Json::array();
  for (int i = 0; i < kNumRoles; ++i) tensors.push_back(Name(static_cast<Role>(i)));
  Json header = {{"schema", "fw-trace/1"},
                 {"version", Version()},
                 {"pass", Name(run.pass)},
                 {"algorithm", Name(run.plan.algorithm)},
                 {"kernel", run.plan.kernel},
                 {"problem", ToJson(run.problem)},
                 {"tile", {{"q", run.plan.tile_q}, {"kv", run.plan.tile_kv}}},
                 {"num_splits", run.plan.num_splits},
                 {"threads", run.plan.num_threads},
                 {"machine", MachineJson()},
                 {"clock", {{"unit", "ns"}, {"kind", "steady"}, {"origin", "start of the call"}}},
                 {"tracks", Workers(events)},
                 {"kinds", kinds},
                 {"tensors", tensors},
                 {"flags", {{"masked", 1}, {"bound", 2}}},
                 {"events", events.size()},
                 {"event_bytes", kEventBytes},
                 {"fields", Fields()}};
  if (run.timeline != nullptr) DescribeTimeline(run, &header);
  return header;
}

void WriteTrace(const std::string& path, const TraceRun& run,
                const std::vector<TraceEvent>& events) {
  std::string header = TraceHeader(run, events).dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the events are aligned to 8
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() + 8 + header.size() + events.size() * kEventBytes);
  Put(&bytes, static_cast<std::uint64_t>(header.size()));
  bytes += header;
  for (const auto& [event, dependency, bound] : events) {
    for (std::int64_t value : {event.t0, event.duration, event.bytes, event.flops}) {
      Put(&bytes, value);
    }
    for (std::int32_t value : {dependency, event.track, event.head, event.q_tile, event.k_tile}) {
      Put(&bytes, value);
    }
    Put(&bytes, static_cast<std::uint8_t>(event.kind));
    Put(&bytes, static_cast<std::uint8_t>(event.role));
    Put(&bytes, event.stage);
    Put(&bytes, static_cast<std::uint8_t>((event.masked != 0 ? 1 : 0) + (bound ? 2 : 0)));
  }
  WriteFile(path, bytes);
}

void WriteChromeTrace(const std::string& path, const TraceRun& run,
                      const std::vector<TraceEvent>& events) {
  const Json header = TraceHeader(run, events);
  const bool blocks = run.timeline != nullptr;
  std::string text =
      fmt::format("{{\"otherData\":{},\n\"displayTimeUnit\":\"ns\",\n", header.dump());
  text += "\"traceEvents\":[\n";
  const auto name = [&](const char* what, int process, int thread, const std::string& value) {
    text += fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}},)"
                        "\n",
                        process, thread, what, Json(value).dump());
  };
  std::map<int, int> processes;  // of the tracks
  for (const Json& track : header["tracks"]) {
    const int id = track["id"].get<int>();
    processes[id] = blocks ? 1 + track["block"].get<int>() : 1;
    if (blocks) {
      name("thread_name", processes[id], id, track["name"].get<std::string>());
      continue;
    }
    name("thread_name", 1, 2 * id, fmt::format("worker {}: products and softmax", id));
    name("thread_name", 1, 2 * id + 1, fmt::format("worker {}: loads and stores", id));
  }
  for (const auto& [event, dependency, bound] : events) {
    const int thread = blocks ? event.track : 2 * event.track + (IsCopy(event.kind) ? 1 : 0);
    text += fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"name":"{} {}","cat":"{}","ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"bytes":{},"flops":{},"head":{},"q_tile":{},"k_tile":{},"stage":{},)"
        R"("masked":{},"bound":{},"dependency":{}}}}},)"
        "\n",
        processes[event.track], thread, Name(event.kind), Name(event.role), Name(event.kind),
        static_cast<double>(event.t0) * 1e-3, static_cast<double>(event.duration) * 1e-3,
        event.bytes, event.flops, event.head, event.q_tile, event.k_tile, event.stage,
        event.masked != 0, bound, dependency);
  }
  for (const Json& block : header.value("blocks", Json::array())) {
    const int number = block["block"].get<int>();
    name("process_name", 1 + number, 0,
         fmt::format("FlashWok {}, block {} on SM {}", run.plan.kernel, number,
                     block["sm"].get<int>()));
  }
  if (!blocks) name("process_name", 1, 0, "FlashWok " + run.plan.kernel);
  text.resize(text.size() - 2);  // the last comma
  text += "\n]}\n";
  WriteFile(path, text);
}

}  // namespace flashwok::cli
