#include "reference/plain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/dtype.h"
#include "reference/head.h"

namespace flashwok::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// To the dtype in which the steps are stored, and back.
class Rounding {
 public:
  explicit Rounding(DType dtype) : dtype_(dtype) {}
  float operator()(float value) const {
    switch (dtype_) {
      case DType::kFloat32: return value;
      case DType::kFloat16: return HalfToFloat(FloatToHalf(value));
      default: return Bf16ToFloat(FloatToBf16(value));
    }
  }

 private:
  DType dtype_;
};

float Dot(const double* a, const double* b, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t c = 0; c < n; ++c) sum += static_cast<float>(a[c]) * static_cast<float>(b[c]);
  return sum;
}

void AddScaled(float* y, float factor, const double* x, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) y[c] += factor * static_cast<float>(x[c]);
}

// One row of S and P, each step rounded.
struct Row {
  std::vector<bool> visible;
  std::vector<float> s, slope, p;
  float lse = kMinusInfinity;

  Row(const Head& head, const Rounding& round, std::int64_t i)
      : visible(static_cast<std::size_t>(head.seqlen_k)),
        s(visible.size()),
        slope(visible.size()),
        p(visible.size()) {
    float max = kMinusInfinity;
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      visible[j] = head.Visible(i, j);
      if (!visible[j]) continue;
      Score(head, round, i, j);
      if (s[j] > max || std::isnan(s[j])) max = s[j];
    }
    if (max == kMinusInfinity) return;
    float sum = 0.0f;
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      if (!visible[j]) continue;
      p[j] = std::exp(s[j] - max);
      sum += p[j];
    }
    lse = max + std::log(sum);
    for (float& weight : p) weight = round(weight / sum);
  }

  void Score(const Head& head, const Rounding& round, std::int64_t i, std::int64_t j) {
    const auto scale = static_cast<float>(head.softmax_scale);
    const auto softcap = static_cast<float>(head.softcap);
    s[j] = round(scale * round(Dot(head.q[i], head.k[j], head.q.cols)));
    slope[j] = scale;
    if (softcap > 0.0f) {
      const float t = round(std::tanh(round(s[j] / softcap)));
      s[j] = round(softcap * t);
      slope[j] = scale * (1.0f - t * t);
    }
    s[j] = round(s[j] + static_cast<float>(head.Bias(i, j)));
    s[j] = round(s[j] + static_cast<float>(head.Alibi(i, j)));
  }
};

// Sums in float32 that are rounded once, when they are complete.
struct Sums {
  std::vector<float> dq, dk, dv, dbias;
};

void BackwardRow(const Problem& problem, const Head& head, const Rounding& round, std::int64_t i,
                 const Tensor& dout, const Tensor& dlse, Sums* sums) {
  const Row row(head, round, i);
  if (row.lse == kMinusInfinity) return;
  const std::vector<double> d_o = head.LoadRow(dout, i);
  const std::int64_t n = head.q.cols;
  const std::int64_t m = head.v.cols;
  std::vector<float> dp(row.p.size());
  float d = -static_cast<float>(head.LoadLse(dlse, i));
  for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
    if (!row.visible[j]) continue;
    const auto keep = static_cast<float>(head.KeepScale(i, j));
    dp[j] = round(keep * round(Dot(d_o.data(), head.v[j], m)));
    d += row.p[j] * dp[j];
    AddScaled(&sums->dv[head.KeyOf(j) * m], round(row.p[j] * keep), d_o.data(), m);
  }
  for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
    if (!row.visible[j]) continue;
    const float ds = round(row.p[j] * (dp[j] - d));
    const float ds_scaled = round(ds * row.slope[j]);
    AddScaled(&sums->dk[head.KeyOf(j) * n], ds_scaled, head.q[i], n);
    AddScaled(&sums->dq[head.RowOf(i) * n], ds_scaled, head.k[j], n);
    if (problem.bias.present()) sums->dbias[head.BiasOf(i, j)] += ds;
  }
}

std::vector<double> Rounded(const std::vector<float>& sums, const Rounding& round) {
  std::vector<double> values(sums.size());
  std::transform(sums.begin(), sums.end(), values.begin(), round);
  return values;
}

}  // namespace

ForwardResult PlainForward(const Problem& problem) {
  const Sizes sizes(problem);
  const Rounding round(problem.q.dtype);
  ForwardResult result;
  result.o.resize(static_cast<std::size_t>(sizes.rows_q * sizes.num_heads * sizes.head_dim_v));
  result.lse.resize(static_cast<std::size_t>(sizes.rows_q * sizes.num_heads), kMinusInfinity);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.num_heads; ++h) {
      const Head head(problem, b, h);
      for (std::int64_t i = 0; i < head.seqlen_q; ++i) {
        const Row row(head, round, i);
        std::vector<float> o(static_cast<std::size_t>(head.v.cols));
        for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
          if (!row.visible[j] || row.lse == kMinusInfinity) continue;
          const float p = round(row.p[j] * static_cast<float>(head.KeepScale(i, j)));
          AddScaled(o.data(), p, head.v[j], head.v.cols);
        }
        std::transform(o.begin(), o.end(), result.o.begin() + head.RowOf(i) * head.v.cols, round);
        result.lse[head.LseOf(i)] = row.lse;
      }
    }
  }
  return result;
}

BackwardResult PlainBackward(const Problem& problem, const Tensor& dout, const Tensor& dlse) {
  const Sizes sizes(problem);
  const Rounding round(problem.q.dtype);
  Sums sums;
  sums.dq.resize(static_cast<std::size_t>(sizes.rows_q * sizes.num_heads * sizes.head_dim));
  sums.dk.resize(static_cast<std::size_t>(sizes.rows_k * sizes.num_heads_kv * sizes.head_dim));
  sums.dv.resize(static_cast<std::size_t>(sizes.rows_k * sizes.num_heads_kv * sizes.head_dim_v));
  sums.dbias.resize(static_cast<std::size_t>(problem.bias.num_elements()));
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.num_heads; ++h) {
      const Head head(problem, b, h);
      for (std::int64_t i = 0; i < head.seqlen_q; ++i) {
        BackwardRow(problem, head, round, i, dout, dlse, &sums);
      }
    }
  }
  const Rounding exact(DType::kFloat32);  // the bias gradient is float32 in every case
  return {Rounded(sums.dq, round), Rounded(sums.dk, round), Rounded(sums.dv, round),
          Rounded(sums.dbias, exact)};
}

}  // namespace flashwok::reference
