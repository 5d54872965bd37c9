// What each instruction computes, against plain loops.
#include "emulator_test.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashwok::emulator {
namespace {

namespace ptx = cuda::ptx;

// [m, n] of a [m, k] and b [n, k], or of b [k, n] if transposed.
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

// c [16, 8] of a [16, 16] and b [16, 8], both through ldmatrix.
void MmaKernel(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::uint32_t shared = ptx::SharedAddress(ptx::DynamicShared());
  const auto piece = static_cast<std::uint32_t>(lane) * 16;  // a is 32 pieces of 16 bytes, b 16
  ptx::CopyAsync16(shared + piece, a + lane * 8, true);
  ptx::CopyAsync16(shared + 512 + piece, b + lane * 8, lane < 16);
  ptx::CopyAsyncCommit();
  ptx::CopyAsyncWait<0>();
  __syncwarp();
  std::uint32_t ra[4], rb[4];
  ptx::LoadMatrix4(ra, shared + static_cast<std::uint32_t>(lane % 16 * 32 + lane / 16 * 16));
  ptx::LoadMatrix4Transposed(rb, shared + 512 + piece);
  float d[4] = {};
  ptx::Mma16816<DType::kBFloat16>(d, ra, rb[0], rb[1]);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

TEST(Emulator, MmaIsTheProduct) {
  const auto a = Numbers(16 * 16, 1), b = Numbers(16 * 8, 2);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<float> c(16 * 8);
    Launch(1, 32, 1024, [&] { MmaKernel(a.data(), b.data(), c.data()); }, {.seed = seed});
    EXPECT_EQ(c, Product(a, b, 16, 8, 16, true)) << seed;
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
  std::array<int, 32> up, down, other, from = {};
  std::array<unsigned, 32> votes;
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

TEST(Emulator, Conversions) {
  using ptx::Exp2, ptx::Pack, ptx::Unpack;
  EXPECT_EQ(Exp2(-INFINITY), 0.0f);
  EXPECT_EQ(Exp2(-130.0f), 0.0f);
  EXPECT_EQ(Exp2(3.0f), 8.0f);
  EXPECT_EQ(Pack<DType::kBFloat16>(1.0f, -2.0f), 0xC0003F80u);
  EXPECT_EQ(Pack<DType::kFloat16>(1.0f, -2.0f), 0xC0003C00u);
  EXPECT_EQ(Unpack<DType::kFloat16>(0xC0003C00u), 1.0f);
  EXPECT_EQ(ptx::Max3(__float_as_int(1.0f), __float_as_int(3.0f), -1), __float_as_int(3.0f));
}

// Rows of kWidth bytes; 16: the layout without a swizzle.
std::uint64_t Descriptor(std::uint32_t address, int leading, int stride, int width) {
  const std::uint64_t mode = width == 128 ? 1 : width == 64 ? 2 : width == 32 ? 3 : 0;
  return address >> 4 | static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | mode << 62;
}

struct WgmmaOptions {
  bool registers = false;  // a
  bool no_wait = false, no_fence = false, no_barrier = false, overwrite = false;
};

constexpr int kDepth = 128;  // k

// a [64, kDepth] and b [kN, kDepth], or [kDepth, kN] if transposed, as tiles of rows of kWidth
// bytes, one after another.
template <int kN, bool kTransposed, int kWidth>
struct WgmmaTiles {
  static constexpr int kSide = kWidth / 2;  // elements of a row of a tile
  static constexpr int kTileA = 64 * kWidth;
  static constexpr int kTileB = (kTransposed ? kDepth : kN) * kWidth;
  static constexpr int kTilesA = kDepth / kSide;
  static constexpr int kTilesB = kTransposed ? kN / kSide : kDepth / kSide;
  unsigned char* const a = ptx::DynamicShared();
  unsigned char* const b = a + kTilesA * kTileA;
  ptx::Mbarrier* const full = reinterpret_cast<ptx::Mbarrier*>(b + kTilesB * kTileB);

  void Load(const ptx::TensorMap& map_a, const ptx::TensorMap& map_b) const {
    ptx::MbarrierInit(full, 1);
    ptx::MbarrierFenceInit();
    ptx::MbarrierArriveExpect(full, kTilesA * kTileA + kTilesB * kTileB);
    for (int i = 0; i < kTilesA; ++i) {
      ptx::TmaLoad(a + i * kTileA, &map_a, full, i * kSide, 0, 0, 0);
    }
    for (int i = 0; i < kTilesB; ++i) {
      ptx::TmaLoad(b + i * kTileB, &map_b, full, i * kSide, 0, 0, 0);
    }
  }
  std::uint64_t A(int k) const {
    const int offset = k / kSide * kTileA + k % kSide * 2;
    return Descriptor(ptx::SharedAddress(a) + static_cast<std::uint32_t>(offset), kTileA,
                      8 * kWidth, kWidth);
  }
  std::uint64_t B(int k) const {
    const int offset = kTransposed ? k * kWidth : k / kSide * kTileB + k % kSide * 2;
    const std::uint32_t address = ptx::SharedAddress(b) + static_cast<std::uint32_t>(offset);
    if (kTransposed && kWidth == 16) return Descriptor(address, 8 * kWidth, kTileB, kWidth);
    return Descriptor(address, kTileB, 8 * kWidth, kWidth);
  }
};

template <int kN, bool kTransposed, int kWidth>
void WgmmaKernel(const ptx::TensorMap& map_a, const ptx::TensorMap& map_b, const std::uint16_t* a,
                 float* c, WgmmaOptions options) {
  using Product = ptx::Wgmma<DType::kBFloat16, kN, kTransposed>;
  const WgmmaTiles<kN, kTransposed, kWidth> tiles;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  if (thread == 0) tiles.Load(map_a, map_b);
  __syncthreads();
  if (!options.no_barrier) ptx::MbarrierWait(tiles.full, 0);
  float d[kN / 2] = {};
  if (!options.no_fence) ptx::WgmmaFence();
  for (int k = 0; k < kDepth; k += 16) {
    if (options.registers) {
      std::uint32_t r[4];
      for (int i = 0; i < 4; ++i) {
        std::memcpy(&r[i], a + (row + i % 2 * 8) * kDepth + k + column + i / 2 * 8, 4);
      }
      Product::Registers(d, r, tiles.B(k), k > 0);
    } else {
      Product::Shared(d, tiles.A(k), tiles.B(k), k > 0);
    }
  }
  ptx::WgmmaCommit();
  if (options.overwrite) tiles.b[thread] = 0;
  if (!options.no_wait) ptx::WgmmaWait<0>();
  for (int i = 0; i < kN / 2; ++i) {
    c[(row + i / 2 % 2 * 8) * kN + i / 4 * 8 + column + i % 2] = d[i];
  }
  if (options.no_wait) ptx::WgmmaWait<0>();
}

template <int kN, bool kTransposed, int kWidth = 128>
bool WgmmaIsTheProduct(std::uint64_t seed, WgmmaOptions options = {}) {
  constexpr int kSwizzle = kWidth == 16 ? 0 : kWidth;
  const auto a = Numbers(64 * kDepth, 3), b = Numbers(kN * kDepth, 4);
  const auto map_a = MapOf(a, 64, kDepth, 64, kWidth / 2, kSwizzle);
  const auto map_b = kTransposed ? MapOf(b, kDepth, kN, kDepth, kWidth / 2, kSwizzle)
                                 : MapOf(b, kN, kDepth, kN, kWidth / 2, kSwizzle);
  std::vector<float> c(64 * kN);
  Launch(1, 128, (64 + kN) * kDepth * 2 + 8,
         [&] { WgmmaKernel<kN, kTransposed, kWidth>(map_a, map_b, a.data(), c.data(), options); },
         {.seed = seed});
  return c == Product(a, b, 64, kN, kDepth, kTransposed);
}

TEST(Emulator, WgmmaOfTmaTilesIsTheProduct) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE((WgmmaIsTheProduct<64, false>(seed))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<128, true>(seed))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<64, true>(seed, {.registers = true}))) << seed;
    EXPECT_TRUE((WgmmaIsTheProduct<128, false>(seed, {.registers = true}))) << seed;
  }
  EXPECT_TRUE((WgmmaIsTheProduct<256, true>(1)));
  EXPECT_TRUE((WgmmaIsTheProduct<128, false, 64>(1)));
  EXPECT_TRUE((WgmmaIsTheProduct<128, true, 64>(2)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, false, 32>(3)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, true, 32>(4)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, false, 16>(5)));
  EXPECT_TRUE((WgmmaIsTheProduct<64, true, 16>(6)));
}

TEST(Emulator, WgmmaWithoutItsWaitsIsCaught) {
  const auto caught = [](WgmmaOptions options) {
    return Caught([&](std::uint64_t seed) { return WgmmaIsTheProduct<64, false>(seed, options); });
  };
  EXPECT_FALSE(caught({}));
  EXPECT_TRUE(caught({.no_wait = true}));
  EXPECT_TRUE(caught({.no_fence = true}));
  EXPECT_TRUE(caught({.no_barrier = true}));
  EXPECT_TRUE(caught({.overwrite = true}));
}

}  // namespace
}  // namespace flashwok::emulator
