#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/head.h"

namespace flashwok::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

template <typename Sum = double>
double Dot(const double* a, const double* b, std::int64_t n) {
  Sum sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += static_cast<Sum>(a[c] * b[c]);
  return sum;
}

void AddScaled(double* y, double factor, const double* x, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) y[c] += factor * x[c];
}

// One row of the scores: what the row sees, s, d(s) / d(q.k), P and lse.
struct Row {
  std::vector<bool> visible;
  std::vector<double> s, slope, p;
  double lse = kMinusInfinity;

  Row(const Head& head, std::int64_t i)
      : visible(static_cast<std::size_t>(head.seqlen_k)),
        s(visible.size()),
        slope(visible.size()),
        p(visible.size()) {
    double max = kMinusInfinity;
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      visible[j] = head.Visible(i, j);
      if (!visible[j]) continue;
      s[j] = head.softmax_scale * Dot(head.q[i], head.k[j], head.q.cols);
      slope[j] = head.softmax_scale;
      if (head.softcap > 0.0) {
        const double t = std::tanh(s[j] / head.softcap);
        s[j] = head.softcap * t;
        slope[j] *= 1.0 - t * t;
      }
      s[j] += head.Bias(i, j) + head.Alibi(i, j);
      if (s[j] > max || std::isnan(s[j])) max = s[j];
    }
    if (max == kMinusInfinity) return;
    double sum = 0.0;
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      if (visible[j]) sum += std::exp(s[j] - max);
    }
    lse = max + std::log(sum);
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      if (visible[j]) p[j] = std::exp(s[j] - lse);
    }
  }

  // Row i of O.
  std::vector<double> Output(const Head& head, std::int64_t i) const {
    std::vector<double> o(static_cast<std::size_t>(head.v.cols));
    if (lse == kMinusInfinity) return o;
    for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
      if (visible[j]) AddScaled(o.data(), p[j] * head.KeepScale(i, j), head.v[j], head.v.cols);
    }
    return o;
  }
};

// The gradients that row i of one head sends to q, k, v and bias.
void BackwardRow(const Problem& problem, const Head& head, std::int64_t i, const Tensor& dout,
                 const Tensor& dlse, const Tensor& given_o, bool narrow_d, BackwardResult* result) {
  const Row row(head, i);
  if (row.lse == kMinusInfinity) return;
  const std::vector<double> o = given_o.present() ? head.LoadRow(given_o, i) : row.Output(head, i);
  const std::vector<double> d_o = head.LoadRow(dout, i);
  const std::int64_t n = head.q.cols;
  const std::int64_t m = head.v.cols;
  const double rowsum =
      narrow_d ? Dot<float>(d_o.data(), o.data(), m) : Dot(d_o.data(), o.data(), m);
  const double d = rowsum - head.LoadLse(dlse, i);
  for (std::int64_t j = 0; j < head.seqlen_k; ++j) {
    if (!row.visible[j]) continue;
    const double keep = head.KeepScale(i, j);
    const double dp = keep * Dot(d_o.data(), head.v[j], m);
    const double ds = row.p[j] * (dp - d);
    AddScaled(&result->dv[head.KeyOf(j) * m], row.p[j] * keep, d_o.data(), m);
    AddScaled(&result->dk[head.KeyOf(j) * n], ds * row.slope[j], head.q[i], n);
    AddScaled(&result->dq[head.RowOf(i) * n], ds * row.slope[j], head.k[j], n);
    if (problem.bias.present()) result->dbias[head.BiasOf(i, j)] += ds;
  }
}

}  // namespace

ForwardResult Forward(const Problem& problem) {
  const Sizes sizes(problem);
  ForwardResult result;
  result.o.resize(static_cast<std::size_t>(sizes.rows_q * sizes.num_heads * sizes.head_dim_v));
  result.lse.resize(static_cast<std::size_t>(sizes.rows_q * sizes.num_heads), kMinusInfinity);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.num_heads; ++h) {
      const Head head(problem, b, h);
      for (std::int64_t i = 0; i < head.seqlen_q; ++i) {
        const Row row(head, i);
        const std::vector<double> o = row.Output(head, i);
        std::copy(o.begin(), o.end(), result.o.begin() + head.RowOf(i) * head.v.cols);
        result.lse[head.LseOf(i)] = row.lse;
      }
    }
  }
  return result;
}

BackwardResult Backward(const Problem& problem, const Tensor& dout, const Tensor& dlse,
                        const Tensor& o, bool narrow_d) {
  const Sizes sizes(problem);
  const auto zeros = [](std::int64_t count) {
    return std::vector<double>(static_cast<std::size_t>(count));
  };
  BackwardResult result;
  result.dq = zeros(sizes.rows_q * sizes.num_heads * sizes.head_dim);
  result.dk = zeros(sizes.rows_k * sizes.num_heads_kv * sizes.head_dim);
  result.dv = zeros(sizes.rows_k * sizes.num_heads_kv * sizes.head_dim_v);
  result.dbias = zeros(problem.bias.num_elements());
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.num_heads; ++h) {
      const Head head(problem, b, h);
      for (std::int64_t i = 0; i < head.seqlen_q; ++i) {
        BackwardRow(problem, head, i, dout, dlse, o, narrow_d, &result);
      }
    }
  }
  return result;
}

}  // namespace flashwok::reference
