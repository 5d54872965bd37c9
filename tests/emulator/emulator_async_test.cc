// Barriers and copies, and that kernels which forget one are caught.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "emulator_test.h"

namespace flashwok::emulator {
namespace {

namespace ptx = cuda::ptx;

enum class Fault {
  kNone,
  kNoFullWait,    // reads a stage before it has come
  kNoEmptyWait,   // fills a stage before it is read
  kEarlyRelease,  // gives a stage back before reading it
  kTooFewBytes,
  kTooManyBytes,
  kNoInitFence,
  kNoReadWait,  // of a TMA store, at the end
  kEarlyReuse,  // overwrites what a TMA store reads
  kNoProxyFence,
};

constexpr int kTiles = 7, kStages = 2, kRows = 8;
constexpr int kTileBytes = kRows * 64 * 2;
constexpr int kWorkers = 128;

struct RingStorage {
  unsigned char stages[kStages][kTileBytes];
  unsigned char result[kTileBytes];
  ptx::Mbarrier full[kStages], empty[kStages];
};

void RingProducer(RingStorage& storage, const ptx::TensorMap& in, Fault fault) {
  for (int tile = 0; tile < kTiles; ++tile) {
    const int stage = tile % kStages, round = tile / kStages;
    if (fault != Fault::kNoEmptyWait) {
      ptx::MbarrierWait(&storage.empty[stage], static_cast<std::uint32_t>(round + 1) & 1);
    }
    const int more = fault == Fault::kTooManyBytes ? 16 : fault == Fault::kTooFewBytes ? -16 : 0;
    ptx::MbarrierArriveExpect(&storage.full[stage], static_cast<std::uint32_t>(kTileBytes + more));
    ptx::TmaLoad(storage.stages[stage], &in, &storage.full[stage], 0, tile * kRows, 0, 0);
  }
}

// Each worker negates 8 bytes of a tile of signs and hands the tile to a TMA store.
void RingWorkers(RingStorage& storage, const ptx::TensorMap& out, Fault fault) {
  const int worker = static_cast<int>(threadIdx.x) - 32;
  const std::uint32_t result = ptx::SharedAddress(storage.result);
  for (int tile = 0; tile < kTiles; ++tile) {
    const int stage = tile % kStages;
    if (fault != Fault::kNoFullWait) {
      ptx::MbarrierWait(&storage.full[stage], static_cast<std::uint32_t>(tile / kStages) & 1);
    }
    if (fault == Fault::kEarlyRelease && worker % 32 == 0) {
      ptx::MbarrierArrive(&storage.empty[stage]);
    }
    if (worker == 0 && fault != Fault::kEarlyReuse) ptx::TmaStoreWaitRead<0>();
    ptx::BarrierSync(1, kWorkers);  // the result is free
    if (worker * 16 < kTileBytes) {
      uint4 value;
      std::memcpy(&value, storage.stages[stage] + worker * 16, 16);
      value.x ^= 0x80008000u, value.y ^= 0x80008000u;
      value.z ^= 0x80008000u, value.w ^= 0x80008000u;
      ptx::StoreShared(result + static_cast<std::uint32_t>(worker) * 16, value);
    }
    __syncwarp();
    if (fault != Fault::kEarlyRelease && worker % 32 == 0) {
      ptx::MbarrierArrive(&storage.empty[stage]);
    }
    if (fault != Fault::kNoProxyFence) ptx::FenceProxyAsync();
    ptx::BarrierSync(1, kWorkers);  // the result is whole
    if (worker == 0) {
      ptx::TmaStore(&out, storage.result, 0, tile * kRows, 0, 0);
      ptx::TmaStoreCommit();
    }
  }
  if (worker == 0 && fault != Fault::kNoReadWait) ptx::TmaStoreWaitRead<0>();
}

void RingKernel(const ptx::TensorMap& in, const ptx::TensorMap& out, Fault fault) {
  auto& storage = *reinterpret_cast<RingStorage*>(ptx::DynamicShared());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::MbarrierInit(&storage.full[stage], 1);
      ptx::MbarrierInit(&storage.empty[stage], kWorkers / 32);
    }
    if (fault != Fault::kNoInitFence) ptx::MbarrierFenceInit();
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    RingWorkers(storage, out, fault);
  } else if (threadIdx.x == 0) {
    RingProducer(storage, in, fault);
  }
}

bool RingWorks(std::uint64_t seed, Fault fault = Fault::kNone) {
  const auto in = Numbers(kTiles * kRows * 64, 5);
  std::vector<std::uint16_t> out(in.size());
  const auto map_in = MapOf(in, kTiles * kRows, 64, kRows, 64, 128);
  const auto map_out = MapOf(out, kTiles * kRows, 64, kRows, 64, 128);
  Launch(1, 32 + kWorkers, sizeof(RingStorage), [&] { RingKernel(map_in, map_out, fault); },
         {.seed = seed});
  return std::equal(in.begin(), in.end(), out.begin(),
                    [](std::uint16_t x, std::uint16_t y) { return (x ^ 0x8000) == y; });
}

TEST(EmulatorAsync, ARingOfTwoStages) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) EXPECT_TRUE(RingWorks(seed)) << seed;
}

TEST(EmulatorAsync, EachFaultOfTheRingIsCaught) {
  for (int fault = 1; fault <= static_cast<int>(Fault::kNoProxyFence); ++fault) {
    EXPECT_TRUE(Caught([&](auto seed) { return RingWorks(seed, static_cast<Fault>(fault)); }))
        << fault;
  }
}

TEST(EmulatorAsync, TilesOutsideTheTensor) {
  constexpr int kHeight = 10, kWidth = 24, kBoxRows = 8, kBoxColumns = 16;
  const auto in = Numbers(kHeight * kWidth, 6);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const int c0 : {-8, 0, 16}) {
      for (const int c1 : {-3, 0, 5}) {
        std::vector<std::uint16_t> out(in.size(), 1);
        std::array<std::uint16_t, kBoxRows * kBoxColumns> tile;
        const auto map_in = MapOf(in, kHeight, kWidth, kBoxRows, kBoxColumns, 0);
        const auto map_out = MapOf(out, kHeight, kWidth, kBoxRows, kBoxColumns, 0);
        const bool stores = c0 >= 0 && c1 >= 0;
        const auto kernel = [&] {
          auto* shared = ptx::DynamicShared();
          auto* full = reinterpret_cast<ptx::Mbarrier*>(shared + sizeof(tile));
          if (threadIdx.x != 0) return;
          ptx::MbarrierInit(full, 1);
          ptx::MbarrierFenceInit();
          ptx::MbarrierArriveExpect(full, sizeof(tile));
          ptx::TmaLoad(shared, &map_in, full, c0, c1, 0, 0);
          ptx::MbarrierWait(full, 0);
          std::memcpy(tile.data(), shared, sizeof(tile));
          if (!stores) return;
          ptx::TmaStore(&map_out, shared, c0, c1, 0, 0);
          ptx::TmaStoreCommit();
          ptx::TmaStoreWait<0>();
        };
        Launch(1, 32, sizeof(tile) + 8, kernel, {.seed = seed});
        for (int i = 0; i < kBoxRows; ++i) {
          for (int j = 0; j < kBoxColumns; ++j) {
            const int row = c1 + i, column = c0 + j;
            const bool inside = row >= 0 && row < kHeight && column >= 0 && column < kWidth;
            const std::uint16_t got = tile[static_cast<std::size_t>(i * kBoxColumns + j)];
            const auto at = static_cast<std::size_t>(inside ? row * kWidth + column : 0);
            EXPECT_EQ(got, inside ? in[at] : 0);
            EXPECT_EQ(inside && stores ? out[at] : 0, inside && stores ? in[at] : 0);
          }
        }
        const auto untouched = std::count(out.begin(), out.end(), 1);
        const int rows = std::min(c1 + kBoxRows, kHeight) - std::max(c1, 0);
        const int columns = std::min(c0 + kBoxColumns, kWidth) - std::max(c0, 0);
        EXPECT_GE(untouched, kHeight * kWidth - rows * columns);
      }
    }
  }
}

TEST(EmulatorAsync, StoresToNegativePlacesAreRefused) {
  std::vector<std::uint16_t> out(10 * 24);
  const auto map = MapOf(out, 10, 24, 8, 16, 0);
  for (const auto& [c0, c1] : {std::pair{-8, 0}, {0, -3}}) {
    const auto kernel = [&, c0 = c0, c1 = c1] {
      if (threadIdx.x == 0) ptx::TmaStore(&map, ptx::DynamicShared(), c0, c1, 0, 0);
    };
    EXPECT_THROW(Launch(1, 32, 8 * 16 * 2, kernel), Error);
  }
}

// Two stages by cp.async: waits for `pending` groups fewer than it should if `fault`.
template <int kPending>
bool CopiesWork(std::uint64_t seed) {
  const auto in = Numbers(4 * 32 * 8, 7);
  std::vector<std::uint16_t> out(in.size());
  const auto kernel = [&] {
    const unsigned lane = threadIdx.x;
    const std::uint32_t shared = ptx::SharedAddress(ptx::DynamicShared()) + lane * 16;
    const auto copy = [&](unsigned tile) {
      ptx::CopyAsync16(shared + tile % 2 * 512, in.data() + (tile * 32 + lane) * 8, true);
    };
    copy(0);
    ptx::CopyAsyncCommit();
    for (unsigned tile = 0; tile < 4; ++tile) {
      if (tile + 1 < 4) copy(tile + 1);
      ptx::CopyAsyncCommit();
      ptx::CopyAsyncWait<kPending>();
      const uint4 value = ptx::LoadShared16(shared + tile % 2 * 512);
      std::memcpy(out.data() + (tile * 32 + lane) * 8, &value, 16);
    }
  };
  Launch(1, 32, 1024, kernel, {.seed = seed});
  return in == out;
}

TEST(EmulatorAsync, CopiesAreWaitedForByTheGroup) {
  EXPECT_FALSE(Caught([](auto seed) { return CopiesWork<1>(seed); }));
  EXPECT_TRUE(Caught([](auto seed) { return CopiesWork<2>(seed); }));
}

TEST(EmulatorAsync, AMissingBarrierIsCaught) {
  const auto run = [](bool barrier, std::uint64_t seed) {
    std::array<std::uint32_t, 128> out;
    const auto kernel = [&] {
      auto* shared = reinterpret_cast<std::uint32_t*>(ptx::DynamicShared());
      shared[threadIdx.x] = threadIdx.x;
      if (barrier) __syncthreads();
      out[threadIdx.x] = threadIdx.x == 0 ? 0 : shared[threadIdx.x - 1] + 1;
    };
    Launch(1, 128, 512, kernel, {.seed = seed});
    for (std::uint32_t i = 0; i < 128; ++i) {
      if (out[i] != i) return false;
    }
    return true;
  };
  EXPECT_FALSE(Caught([&](auto seed) { return run(true, seed); }));
  EXPECT_TRUE(Caught([&](auto seed) { return run(false, seed); }));
}

TEST(EmulatorAsync, ADeadlockSaysWhoWaits) {
  const std::string report = ErrorOf([] {
    Launch(1, 64, 0, [] {
      if (threadIdx.x < 32) ptx::BarrierSync(3, 64);
    });
  });
  EXPECT_NE(report.find("deadlock"), std::string::npos) << report;
  EXPECT_NE(report.find("lanes 0-31: bar.sync 3"), std::string::npos) << report;
}

TEST(EmulatorAsync, MisusesAreErrors) {
  const auto error = [](const std::function<void()>& kernel, int threads = 32) {
    return ErrorOf([&] { Launch(1, threads, 256, kernel); });
  };
  EXPECT_NE(error([] {
              if (threadIdx.x < 16) {
                __syncwarp();
              } else {
                __shfl_sync(0xFFFFFFFFu, 1, 0);
              }
            }).find("diverge"),
            std::string::npos);
  EXPECT_NE(error([] { ptx::StoreShared(250, 1u); }).find("multiple"), std::string::npos);
  EXPECT_NE(error([] { ptx::StoreShared(256, 1u); }).find("shared address"), std::string::npos);
  EXPECT_NE(error([] { ptx::BarrierSync(16, 32); }).find("barrier"), std::string::npos);
  EXPECT_NE(error([] { ptx::DynamicShared()[260] = 1; }).find("past the end"), std::string::npos);
  EXPECT_NE(error([] { __shfl_sync(1u, 1, 0); }).find("mask"), std::string::npos);
  EXPECT_NE(error([] {
              ptx::WgmmaFence();
              float d[4];
              ptx::Wgmma<DType::kFloat16, 8, false>::Shared(d, 0, 0, false);
            }).find("four warps"),
            std::string::npos);
  static const int never = 0;
  EXPECT_NE(error([] {
              while (*const_cast<const volatile int*>(&never) == 0) __nanosleep(20);
            }).find("loop"),
            std::string::npos);
}

TEST(EmulatorAsync, RegistersMoveBetweenWarpgroups) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Launch(1, 384, 0,
           [] {
             if (threadIdx.x < 128) {
               ptx::GiveRegisters<24>();
             } else {
               ptx::TakeRegisters<240>();
             }
           },
           {.seed = seed});
  }
  EXPECT_NE(ErrorOf([] { Launch(1, 384, 0, [] { ptx::TakeRegisters<240>(); }); }), "");
}

TEST(EmulatorAsync, BlocksMayWaitForEachOther) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    int turn = 0;
    std::vector<int> order;
    const auto kernel = [&] {
      if (threadIdx.x == 0) {
        while (atomicAdd(&turn, 0) != static_cast<int>(blockIdx.x)) __nanosleep(20);
        order.push_back(static_cast<int>(blockIdx.x));
      }
      __syncthreads();
      if (threadIdx.x == 0) atomicAdd(&turn, 1);
    };
    Launch(4, 64, 0, kernel, {.seed = seed, .resident_blocks = 4});
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  }
}

}  // namespace
}  // namespace flashwok::emulator
