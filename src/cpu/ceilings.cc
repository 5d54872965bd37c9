#include "cpu/ceilings.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ceilings.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <chrono>
#include <functional>
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

// The tiles of a product as large as a Q tile by a KV tile at head_dim 128.
inline constexpr int kRows = 192;
inline constexpr int kCols = 128;
inline constexpr int kDepth = 128;
inline constexpr int kProductFloats = (kRows + kDepth + kRows) * kTileLd;

// Returns FLOPs.
double Products(float* tiles) {
  constexpr int kRounds = 50;
  float* a = tiles;                 // [kRows, kDepth]
  float* b = a + kRows * kTileLd;   // [kDepth, kCols]
  float* c = b + kDepth * kTileLd;  // [kRows, kCols]
  for (int round = 0; round < kRounds; ++round) Gemm<Add::kNo>(kRows, kCols, kDepth, a, b, c);
  return 2.0 * kRounds * kRows * kCols * kDepth;
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok {
namespace cpu {
HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(Products);
double RunMultiplyAdds(float* sink) { return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(sink); }
double RunProducts(float* tiles) { return HWY_DYNAMIC_DISPATCH(Products)(tiles); }
}  // namespace cpu

namespace {

// The best rate of `work`, which returns its FLOPs, when each thread does it at once.
double BestRate(int threads, const std::function<double(std::int64_t)>& work) {
  double best = 0.0;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [](auto from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  while (seconds(begin) < 0.05) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<double> flops(static_cast<std::size_t>(threads));
    ParallelFor(threads, threads, [&](int, std::int64_t index) { flops[index] = work(index); });
    double total = 0.0;
    for (double count : flops) total += count;
    best = std::max(best, total / seconds(start));
  }
  return best;
}

}  // namespace

double MeasureFmaPeak(int threads) {
  std::vector<float> sinks(static_cast<std::size_t>(threads) * 16);
  return BestRate(threads,
                  [&](std::int64_t index) { return cpu::RunMultiplyAdds(&sinks[index * 16]); });
}

double MeasureGemm(int threads) {
  constexpr int kFloats = cpu::HWY_NAMESPACE::kProductFloats;
  const std::size_t count = static_cast<std::size_t>(threads) * kFloats;
  const auto tiles = hwy::AllocateAligned<float>(count);
  std::fill_n(tiles.get(), count, 0.5f);
  return BestRate(
      threads, [&](std::int64_t index) { return cpu::RunProducts(tiles.get() + index * kFloats); });
}

}  // namespace flashwok
#endif
