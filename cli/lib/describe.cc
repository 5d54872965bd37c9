// What a problem is, in words, in JSON and in numbers.
#include <fmt/format.h>

#include "common/layout.h"
#include "lib/machine.h"
#include "lib/workload.h"

namespace flashwok::cli {
namespace {

std::int64_t LongestKeys(const Layout& layout) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    longest = std::max(longest, layout.At(b).seqlen_k);
  }
  return longest;
}

}  // namespace

std::string Describe(const Problem& problem, Device device) {
  const Layout layout(problem);
  const bool varlen = problem.cu_seqlens_q.present();
  std::string text =
      fmt::format("batch {}, seqlen {} x {}{}, heads {} over {}, head_dim {}", layout.batch,
                  layout.max_seqlen_q, LongestKeys(layout), varlen ? " at most" : "",
                  layout.num_heads, layout.num_heads_kv, layout.head_dim);
  if (layout.head_dim_v != layout.head_dim) text += fmt::format(" (v {})", layout.head_dim_v);
  text += fmt::format(", {}", Name(problem.q.dtype));
  if (problem.causal != Causal::kNone) text += fmt::format(", causal {}", Name(problem.causal));
  if (problem.window_left >= 0 || problem.window_right >= 0) {
    text += fmt::format(", window {},{}", problem.window_left, problem.window_right);
  }
  if (problem.softcap > 0.0) text += fmt::format(", softcap {}", problem.softcap);
  if (problem.bias.present()) text += ", bias";
  if (problem.mask.present()) text += ", mask";
  if (problem.alibi_slopes.present()) text += ", ALiBi";
  if (problem.seqused_k.present()) text += ", key lengths";
  if (problem.page_table.present()) text += fmt::format(", pages of {}", layout.page_size);
  if (problem.dropout_p > 0.0) text += fmt::format(", dropout {}", problem.dropout_p);
  if (device.type != DeviceType::kCpu) text += ", on " + TitleOf(device);
  return text;
}

Json ToJson(const Problem& problem) {
  const Layout layout(problem);
  Json json = {{"batch", layout.batch},
               {"seqlen_q", layout.max_seqlen_q},
               {"seqlen_k", LongestKeys(layout)},
               {"num_heads", layout.num_heads},
               {"num_heads_kv", layout.num_heads_kv},
               {"head_dim", layout.head_dim},
               {"head_dim_v", layout.head_dim_v},
               {"dtype", Name(problem.q.dtype)},
               {"causal", Name(problem.causal)},
               {"window", {problem.window_left, problem.window_right}},
               {"softmax_scale", layout.softmax_scale},
               {"softcap", problem.softcap},
               {"dropout_p", problem.dropout_p}};
  const auto flag = [&](const char* name, const Tensor& tensor) {
    if (tensor.present()) json[name] = true;
  };
  flag("varlen", problem.cu_seqlens_q);
  flag("seqused_k", problem.seqused_k);
  flag("page_table", problem.page_table);
  flag("bias", problem.bias);
  flag("mask", problem.mask);
  flag("alibi_slopes", problem.alibi_slopes);
  return json;
}

double VisiblePairs(const Problem& problem) {
  const Layout layout(problem);
  double pairs = 0.0;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    const Sequence sequence = layout.At(b);
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const KeyRange keys = sequence.mask.Row(i);
      pairs += static_cast<double>(keys.end - keys.begin);
    }
  }
  return pairs * static_cast<double>(layout.num_heads);
}

double UsefulFlops(const Problem& problem, Pass pass) {
  const auto d = static_cast<double>(problem.q.shape[problem.q.rank - 1]);
  const auto d_v = static_cast<double>(problem.v.shape[problem.v.rank - 1]);
  const double columns = pass == Pass::kForward ? d + d_v : 3.0 * d + 2.0 * d_v;
  return 2.0 * VisiblePairs(problem) * columns;
}

}  // namespace flashwok::cli
