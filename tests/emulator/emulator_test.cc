// The emulator itself: what each instruction computes, and that faults are found.
#include "emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashwok {
namespace {

namespace ptx = cuda::ptx;
using emulator::Error;
using emulator::Launch;

constexpr std::uint64_t kSeeds = 24;

// Whole numbers of a few bits: exact in bfloat16, as are all their sums in float32.
std::vector<std::uint16_t> Numbers(int count, std::uint32_t seed) {
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(count));
  for (std::uint16_t& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = FloatToBf16(static_cast<float>(static_cast<int>(seed >> 24) - 128));
  }
  return numbers;
}

// [m, n] of a [m, k] and b [n, k], or of b [k, n].
std::vector<float> Product(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                           int m, int n, int k, bool transposed) {
  std::vector<float> c(static_cast<std::size_t>(m * n));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) {
        const int at = transposed ? l * n + j : j * k + l;
        sum += Bf16ToFloat(a[static_cast<std::size_t>(i * k + l)]) *
               Bf16ToFloat(b[static_cast<std::size_t>(at)]);
      }
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

// Does it go wrong, by an error or in what it computes, for some seed?
template <class Run>
bool Caught(Run run) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    try {
      if (!run(seed)) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// c [16, 8] of a [16, 16] and b [16, 8]: rows of a and of b through ldmatrix.
void MmaKernel(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::uint32_t shared = ptx::SharedAddress(ptx::DynamicShared());
  // a is 32 pieces of 16 bytes, b 16.
  ptx::CopyAsync16(shared + static_cast<std::uint32_t>(lane) * 16, a + lane * 8, true);
  ptx::CopyAsync16(shared + 512 + static_cast<std::uint32_t>(lane) * 16, b + lane * 8, lane < 16);
  ptx::CopyAsyncCommit();
  ptx::CopyAsyncWait<0>();
  __syncwarp();
  const int row = lane % 16, column = lane / 16;
  std::uint32_t ra[4], rb[4];
  ptx::LoadMatrix4(ra, shared + static_cast<std::uint32_t>(row * 32 + column * 16));
  ptx::LoadMatrix4Transposed(rb, shared + 512 + static_cast<std::uint32_t>(lane) * 16);
  float d[4] = {};
  ptx::Mma16816<DType::kBFloat16>(d, ra, rb[0], rb[1]);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

TEST(Emulator, MmaIsTheProduct) {
  const auto a = Numbers(16 * 16, 1), b = Numbers(16 * 8, 2);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<float> c(16 * 8);
    Launch(1, 32, 1024, [&] { MmaKernel(a.data(), b.data(), c.data()); }, {.seed = seed});
    EXPECT_EQ(c, Product(a, b, 16, 8, 16, true));
  }
}

TEST(Emulator, MatricesComeBackAsTheyWereStored) {
  std::vector<std::uint32_t> out(32 * 4);
  Launch(1, 32, 512, [&] {
    const unsigned lane = threadIdx.x;
    const std::uint32_t address = ptx::SharedAddress(ptx::DynamicShared()) + lane * 16;
    ptx::StoreMatrix4(address, lane, lane + 100, lane + 200, lane + 300);
    __syncwarp();
    std::uint32_t r[4];
    ptx::LoadMatrix4(r, address);
    for (unsigned i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
  });
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(out[lane * 4 + i], lane + i * 100);
  }
}

TEST(Emulator, ShufflesAndVotes) {
  std::vector<int> up(32), down(32), other(32), from(32);
  std::vector<unsigned> votes(32);
  Launch(1, 32, 0, [&] {
    const int lane = static_cast<int>(threadIdx.x);
    const auto at = static_cast<std::size_t>(lane);
    up[at] = __shfl_up_sync(0xFFFFFFFFu, lane, 1, 8);
    down[at] = __shfl_down_sync(0xFFFFFFFFu, lane, 2);
    other[at] = static_cast<int>(__shfl_xor_sync(0xFFFFFFFFu, static_cast<float>(lane), 5));
    if (lane < 8) from[at] = __shfl_sync(0xFFu, lane, 3);
    votes[at] = __ballot_sync(0xFFFFFFFFu, lane % 3 == 0);
  });
  for (int lane = 0; lane < 32; ++lane) {
    const auto at = static_cast<std::size_t>(lane);
    EXPECT_EQ(up[at], lane % 8 == 0 ? lane : lane - 1);
    EXPECT_EQ(down[at], lane < 30 ? lane + 2 : lane);
    EXPECT_EQ(other[at], lane ^ 5);
    EXPECT_EQ(from[at], lane < 8 ? 3 : 0);
    EXPECT_EQ(votes[at], 0x49249249u);
  }
}

// A tensor map of a matrix [rows, columns] of 16-bit elements.
ptx::TensorMap MapOf(const std::vector<std::uint16_t>& matrix, int rows, int columns,
                     std::uint32_t box_rows, int swizzle = 128) {
  ptx::TensorMap map;
  const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
  emulator::EncodeTiled(&map, 2, matrix.data(), {c, r, 1, 1}, {c * 2, r * c * 2, r * c * 2},
                        {static_cast<std::uint32_t>(swizzle / 2), box_rows, 1, 1}, swizzle);
  return map;
}

std::uint64_t Descriptor(std::uint32_t address, int leading, int stride, int swizzle) {
  const std::uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3;
  return address >> 4 | static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | mode << 62;
}

struct WgmmaFaults {
  bool no_wait = false, no_fence = false, no_barrier = false;
};

constexpr int kDepth = 128;  // k

// c [64, kN] of a [64, kDepth] and b [kN, kDepth], or [kDepth, kN] if transposed: tiles of kSwizzle
// bytes a row.
template <int kN, bool kTransposed, int kSwizzle>
void WgmmaKernel(const ptx::TensorMap& map_a, const ptx::TensorMap& map_b, float* c,
                 WgmmaFaults faults) {
  constexpr int kSide = kSwizzle / 2;  // elements of a row of a tile
  constexpr int kTileA = 64 * kSwizzle;
  constexpr int kTileB = (kTransposed ? kDepth : kN) * kSwizzle;
  constexpr int kTilesB = kTransposed ? kN / kSide : kDepth / kSide;
  unsigned char* const a = ptx::DynamicShared();
  unsigned char* const b = a + kDepth / kSide * kTileA;
  auto* const full = reinterpret_cast<ptx::Mbarrier*>(b + kTilesB * kTileB);
  if (threadIdx.x == 0) {
    ptx::MbarrierInit(full, 1);
    ptx::MbarrierFenceInit();
    ptx::MbarrierArriveExpect(full, kDepth / kSide * kTileA + kTilesB * kTileB);
    for (int i = 0; i < kDepth / kSide; ++i) {
      ptx::TmaLoad(a + i * kTileA, &map_a, full, i * kSide, 0, 0, 0);
    }
    for (int i = 0; i < kTilesB; ++i) {
      ptx::TmaLoad(b + i * kTileB, &map_b, full, i * kSide, 0, 0, 0);
    }
  }
  __syncthreads();
  if (!faults.no_barrier) ptx::MbarrierWait(full, 0);
  float d[kN / 2];
  for (float& element : d) element = 0;
  if (!faults.no_fence) ptx::WgmmaFence();
  for (int k = 0; k < kDepth; k += 16) {
    const std::uint32_t within = static_cast<std::uint32_t>(k % kSide * 2);
    const std::uint32_t at_a =
        ptx::SharedAddress(a) + static_cast<std::uint32_t>(k / kSide * kTileA) + within;
    const std::uint32_t at_b =
        ptx::SharedAddress(b) + (kTransposed
                                     ? static_cast<std::uint32_t>(k * kSwizzle)
                                     : static_cast<std::uint32_t>(k / kSide * kTileB) + within);
    ptx::Wgmma<DType::kBFloat16, kN, kTransposed>::Shared(
        d, Descriptor(at_a, 16, 8 * kSwizzle, kSwizzle),
        Descriptor(at_b, kTileB, 8 * kSwizzle, kSwizzle), k > 0);
  }
  ptx::WgmmaCommit();
  if (!faults.no_wait) ptx::WgmmaWait<0>();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < kN / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    c[row * kN + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
  if (faults.no_wait) ptx::WgmmaWait<0>();
}

template <int kN, bool kTransposed, int kSwizzle = 128>
bool WgmmaIsTheProduct(std::uint64_t seed, WgmmaFaults faults = {}) {
  const auto a = Numbers(64 * kDepth, 3), b = Numbers(kN * kDepth, 4);
  const auto map_a = MapOf(a, 64, kDepth, 64, kSwizzle);
  const auto map_b =
      kTransposed ? MapOf(b, kDepth, kN, kDepth, kSwizzle) : MapOf(b, kN, kDepth, kN, kSwizzle);
  std::vector<float> c(64 * kN);
  Launch(1, 128, (64 + kN) * kDepth * 2 + 8,
         [&] { WgmmaKernel<kN, kTransposed, kSwizzle>(map_a, map_b, c.data(), faults); },
         {.seed = seed});
  return c == Product(a, b, 64, kN, kDepth, kTransposed);
}

TEST(Emulator, WgmmaOfTmaTilesIsTheProduct) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE((WgmmaIsTheProduct<64, false>(seed))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<128, false>(seed))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<64, true>(seed))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<128, true>(seed))) << seed;
  }
  EXPECT_TRUE((WgmmaIsTheProduct<128, false, 64>(1)));
  EXPECT_TRUE((WgmmaIsTheProduct<128, true, 64>(2)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, false, 32>(3)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, true, 32>(4)));
}

TEST(Emulator, WgmmaWithoutItsWaitsIsCaught) {
  EXPECT_TRUE(Caught([](auto seed) { return WgmmaIsTheProduct<64, false>(seed, {true}); }));
  EXPECT_TRUE(Caught([](auto seed) {
    return WgmmaIsTheProduct<64, false>(seed, {.no_wait = false, .no_fence = true});
  }));
  EXPECT_TRUE(
      Caught([](auto seed) { return WgmmaIsTheProduct<64, false>(seed, {.no_barrier = true}); }));
}

TEST(Emulator, ADeadlockThrows) {
  const std::string report = ErrorOf([] {
    Launch(1, 64, 0, [] {
      if (threadIdx.x < 32) ptx::BarrierSync(3, 64);
    });
  });
  EXPECT_NE(report.find("deadlock"), std::string::npos) << report;
  EXPECT_NE(report.find("lanes 0-31"), std::string::npos) << report;
}

TEST(Emulator, AMissingBarrierIsCaught) {
  const auto run = [](bool barrier, std::uint64_t seed) {
    std::vector<std::uint32_t> out(128);
    Launch(1, 128, 512,
           [&] {
             auto* shared = reinterpret_cast<std::uint32_t*>(ptx::DynamicShared());
             shared[threadIdx.x] = threadIdx.x;
             if (barrier) __syncthreads();
             out[threadIdx.x] = threadIdx.x == 0 ? 0 : shared[threadIdx.x - 1] + 1;
           },
           {.seed = seed});
    for (std::uint32_t i = 0; i < 128; ++i) {
      if (out[i] != i) return false;
    }
    return true;
  };
  EXPECT_FALSE(Caught([&](auto seed) { return run(true, seed); }));
  EXPECT_TRUE(Caught([&](auto seed) { return run(false, seed); }));
}

}  // namespace
}  // namespace flashwok
