// Causal attention of 6 tokens by every algorithm, held against the sums written out.
#include <flashwok/flashwok.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int kSeqlen = 6;
constexpr int kNumHeads = 4;
constexpr int kNumHeadsKv = 2;  // each key head serves two query heads
constexpr int kHeadDim = 8;

std::vector<float> Wave(int heads, float frequency) {
  std::vector<float> values(kSeqlen * heads * kHeadDim);
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = std::sin(frequency * n);
  return values;
}

flashwok::Tensor View(std::vector<float>& values, int heads) {
  return flashwok::Tensor::Contiguous(values.data(), flashwok::DType::kFloat32,
                                      {1, kSeqlen, heads, kHeadDim});
}

// O by its definition, in double.
std::vector<double> Definition(const std::vector<float>& q, const std::vector<float>& k,
                               const std::vector<float>& v) {
  std::vector<double> o(q.size());
  for (int i = 0; i < kSeqlen; ++i) {
    for (int h = 0; h < kNumHeads; ++h) {
      const int row = (i * kNumHeads + h) * kHeadDim;
      double weights = 0.0;
      for (int j = 0; j <= i; ++j) {
        const int key = (j * kNumHeadsKv + h / (kNumHeads / kNumHeadsKv)) * kHeadDim;
        double score = 0.0;
        for (int c = 0; c < kHeadDim; ++c) score += double{q[row + c]} * k[key + c];
        const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
        weights += weight;
        for (int c = 0; c < kHeadDim; ++c) o[row + c] += weight * v[key + c];
      }
      for (int c = 0; c < kHeadDim; ++c) o[row + c] /= weights;
    }
  }
  return o;
}

}  // namespace

int main() {
  using namespace flashwok;
  std::vector<float> q = Wave(kNumHeads, 0.7f);
  std::vector<float> k = Wave(kNumHeadsKv, 1.1f);
  std::vector<float> v = Wave(kNumHeadsKv, 0.3f);
  std::vector<float> o(q.size());
  Problem problem;
  problem.q = View(q, kNumHeads);
  problem.k = View(k, kNumHeadsKv);
  problem.v = View(v, kNumHeadsKv);
  problem.causal = Causal::kBottomRight;
  ForwardOutput output;
  output.o = View(o, kNumHeads);

  std::printf("FlashWok %s\n", Version());
  const std::vector<double> expected = Definition(q, k, v);
  double worst = 0.0;
  for (Algorithm algorithm :
       {Algorithm::kStandard, Algorithm::kV1, Algorithm::kV2, Algorithm::kV3}) {
    problem.algorithm = algorithm;
    std::fill(o.begin(), o.end(), NAN);
    if (Status status = Forward(problem, output); !status.ok()) {
      std::printf("%s: %s\n", Name(algorithm), status.message().c_str());
      return 1;
    }
    double error = 0.0;
    for (std::size_t n = 0; n < o.size(); ++n) {
      error = std::isfinite(o[n]) ? std::max(error, std::abs(o[n] - expected[n])) : INFINITY;
    }
    worst = std::max(worst, error);
    std::printf("%-21s largest error %.1e, last row of O:",
                Plan(problem, Pass::kForward).kernel.c_str(), error);
    for (int c = 0; c < kHeadDim; ++c) std::printf(" %7.4f", o[o.size() - kHeadDim + c]);
    std::printf("\n");
  }
  return worst <= 1e-6 ? 0 : 1;
}
