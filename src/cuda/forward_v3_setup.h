// What forward V3 needs of the host: which problems it takes, and its parameters. Without CUDA, so
// that tests run it anywhere; the one call to the driver is passed in.
#pragma once

#include <string>

#include "cuda/attention/forward_v3_params.h"
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

// Why V3 does not take the problem, or empty.
std::string ForwardV3Objection(const Layout& layout);

// Work tiles of its grid.
std::int64_t ForwardV3WorkTiles(const Layout& layout);

// All but the counter of work tiles.
Status MakeForwardV3Params(const Layout& layout, const ForwardOutput& output,
                           EncodeTensorMap encode, ForwardV3Params* params);

}  // namespace flashwok::cuda
