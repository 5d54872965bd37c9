#include "cpu/fma_peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fma_peak.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include <algorithm>
#include <chrono>
#include <vector>

#include "cpu/gemm-inl.h"
#include "cpu/parallel_for.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Independent chains of multiply-adds, as many as the micro-kernel has accumulators; returns FLOPs.
double MultiplyAdds(float* sink) {
  constexpr int kChains = kGemmRows * kGemmVectors;
  constexpr int kRounds = 400'000;
  const F32 d;
  hn::Vec<F32> sum[kChains];
  for (int n = 0; n < kChains; ++n) sum[n] = hn::Set(d, static_cast<float>(n));
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.5f);
  for (int round = 0; round < kRounds; ++round) {
    FLASHWOK_UNROLL
    for (int n = 0; n < kChains; ++n) sum[n] = hn::MulAdd(sum[n], factor, term);
  }
  auto total = hn::Zero(d);
  for (int n = 0; n < kChains; ++n) total = hn::Add(total, sum[n]);
  *sink = hn::GetLane(hn::SumOfLanes(d, total));
  return 2.0 * kRounds * kChains * kLanes;
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok {
namespace cpu {
HWY_EXPORT(MultiplyAdds);
double RunMultiplyAdds(float* sink) { return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(sink); }
}  // namespace cpu

double MeasureFmaPeak(int threads) {
  std::vector<float> sinks(static_cast<std::size_t>(threads) * 16);
  double best = 0.0;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [](auto from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  while (seconds(begin) < 0.2) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<double> flops(static_cast<std::size_t>(threads));
    ParallelFor(threads, threads, [&](int, std::int64_t index) {
      flops[index] = cpu::RunMultiplyAdds(&sinks[index * 16]);
    });
    double total = 0.0;
    for (double count : flops) total += count;
    best = std::max(best, total / seconds(start));
  }
  return best;
}

}  // namespace flashwok
#endif
