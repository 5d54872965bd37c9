// float8 with one scale a batch and key head, as k_descale and its like take it.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "api/validate.h"
#include "common/dtype.h"
#include "cpu/parallel_for.h"
#include "flashwok/attention.h"

namespace flashwok {
namespace {

template <typename Body>
void ForEachRow(const Tensor& x, std::int64_t first_head, std::int64_t last_head,
                const Body& body) {
  for (std::int64_t i = 0; i < x.shape[1]; ++i) {
    for (std::int64_t h = first_head; h < last_head; ++h) body(i, h);
  }
}

std::int64_t At(const Tensor& t, std::int64_t b, std::int64_t i, std::int64_t h) {
  return b * t.strides[0] + i * t.strides[1] + h * t.strides[2];
}

}  // namespace

Status QuantizeFloat8(const Tensor& x, const Tensor& values, const Tensor& descale) {
  if (Status status = ValidateQuantize(x, values, descale); !status.ok()) return status;
  const float largest = values.dtype == DType::kFloat8E4M3 ? E4M3ToFloat(E4M3::kLargest)
                                                           : E5M2ToFloat(E5M2::kLargest);
  const std::int64_t heads_kv = descale.shape[1];
  const std::int64_t group = x.shape[2] / heads_kv;
  const std::int64_t work = descale.shape[0] * heads_kv;
  const auto threads = std::min<std::int64_t>(HardwareThreads(), std::max<std::int64_t>(work, 1));
  ParallelFor(static_cast<int>(threads), work, [&](int, std::int64_t index) {
    const std::int64_t b = index / heads_kv;
    const std::int64_t first = index % heads_kv * group;
    float peak = 0.0f;  // of the finite ones: the others stay what they are, or saturate
    ForEachRow(x, first, first + group, [&](std::int64_t i, std::int64_t h) {
      for (std::int64_t c = 0; c < x.shape[3]; ++c) {
        const float value = std::abs(LoadAsFloat(x.data, x.dtype, At(x, b, i, h) + c));
        if (value <= FLT_MAX) peak = std::max(peak, value);
      }
    });
    const float scale = peak > 0.0f ? std::max(peak / largest, FLT_MIN) : 1.0f;
    ForEachRow(x, first, first + group, [&](std::int64_t i, std::int64_t h) {
      for (std::int64_t c = 0; c < x.shape[3]; ++c) {
        const float value = LoadAsFloat(x.data, x.dtype, At(x, b, i, h) + c) / scale;
        StoreFromFloat(values.data, values.dtype, At(values, b, i, h) + c, value);
      }
    });
    static_cast<float*>(
        descale.data)[b * descale.strides[0] + index % heads_kv * descale.strides[1]] = scale;
  });
  return {};
}

}  // namespace flashwok
