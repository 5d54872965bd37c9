// What forward V3 needs of the host: which problems it takes, and its parameters. Without CUDA, so
// that tests run it anywhere; the one call to the driver is passed in.
#pragma once

#include <algorithm>
#include <string>

#include "common/mask.h"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/config/forward_v3.h"
#include "flashwok/status.h"

namespace flashwok::cuda {

// A tile of a 4-dimensional tensor of 16-bit elements, the innermost dimension first.
struct TensorMapRequest {
  DType dtype = DType::kBFloat16;
  void* base = nullptr;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};  // bytes, of dimensions 1 to 3
  std::uint32_t box[4] = {};
  int swizzle = 0;  // bytes
};
using EncodeTensorMap = Status (*)(const TensorMapRequest&, ptx::TensorMap*);

// Whether tiles hide keys that lie within the tensors: then their work is unlike, and what they
// hide can be NaN.
inline bool ForwardV3Hides(const Problem& problem) {
  return problem.causal != Causal::kNone || problem.window_left >= 0 || problem.window_right >= 0 ||
         problem.cu_seqlens_q.present() || problem.seqused_k.present();
}

// From its table, for a problem that it takes. The lengths of varlen sequences are on the device:
// they count as long ones.
inline int ForwardV3RowOf(const Layout& layout) {
  const Problem& problem = layout.problem();
  const IntervalMask mask = IntervalMask::Make(problem.causal, problem.window_left,
                                               problem.window_right, 0, layout.total_k);
  const std::int64_t keys = problem.cu_seqlens_q.present() ? INT64_MAX : layout.total_k;
  return ForwardV3Row(layout.head_dim, layout.head_dim_v, std::min(keys, mask.left + mask.right + 1),
                      ForwardV3Hides(problem));
}
inline ForwardV3Config ForwardV3ConfigOf(const Layout& layout) {
  const ForwardV3Config& config = kForwardV3Configs[ForwardV3RowOf(layout)];
  return layout.softcap > 0.0 ? WithSoftcap(config) : config;
}

// Why V3 does not take the problem, or empty.
std::string ForwardV3Objection(const Layout& layout);

// Scratch; its contents do not matter.
std::size_t ForwardV3Scratch(const Layout& layout, const ForwardV3Config& config);

Status MakeForwardV3Params(const Layout& layout, const ForwardV3Config& config,
                           const ForwardOutput& output, void* scratch, EncodeTensorMap encode,
                           ForwardV3Params* params);

}  // namespace flashwok::cuda
