#include "lib/measure.h"

#include <iterator>
#include <utility>

namespace flashwok::cli {

Measurement Measure(Session& session, Algorithm algorithm, int repeats, double patience,
                    Progress& progress, double share) {
  Measurement result;
  result.algorithm = algorithm;
  result.status = session.status();
  result.refusal = session.refusal();
  result.plan = session.plan();
  result.flops = UsefulFlops(session.problem(), session.pass());
  double left = share;
  const auto advance = [&] {
    progress.Add(share / (repeats + 1));
    left -= share / (repeats + 1);
  };
  if (result.status.ok()) {
    if (session.on_cpu()) result.traffic = std::make_unique<TrafficCounter>();
    session.Run(result.traffic.get());
    result.model_bytes = session.model_bytes();
    advance();
    std::vector<double> seconds;
    for (double total = 0.0; seconds.empty() || (std::ssize(seconds) < repeats && total < patience);
         total += seconds.back()) {
      seconds.push_back(session.RunPass());
      advance();
    }
    result.timing = Summarize(std::move(seconds));
    result.result_bytes = session.result_bytes();
    session.Finish();
  }
  progress.Add(left);
  return result;
}

Json ToJson(const Measurement& m) {
  Json json = {{"algorithm", Name(m.algorithm)}};
  if (!m.status.ok()) {
    json["refused"] = m.refusal;
    if (m.plan.workspace_bytes > 0) json["extra_bytes"] = m.plan.workspace_bytes;
    return json;
  }
  json["kernel"] = m.plan.kernel;
  json["tile_q"] = m.plan.tile_q;
  json["tile_kv"] = m.plan.tile_kv;
  if (m.traffic != nullptr) json["threads"] = m.plan.num_threads;
  json["repeats"] = m.timing.repeats;
  json["ms"] = m.timing.median * 1e3;
  json["ms_min"] = m.timing.min * 1e3;
  json["ms_max"] = m.timing.max * 1e3;
  json["gflops"] = m.gflops();
  if (m.traffic != nullptr) json["traffic"] = m.traffic->ToJson();
  json["model_bytes"] = m.model_bytes;
  json["extra_bytes"] = m.plan.workspace_bytes;
  json["result_bytes"] = m.result_bytes;
  return json;
}

}  // namespace flashwok::cli
