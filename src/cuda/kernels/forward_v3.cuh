// Flash Attention V3 (Shah et al. 2024, Algorithms 1 and 2) for Hopper. Against V2:
//   - roles: a producer warp has the copy engine bring Q, K and V through rings of stages, consumer
//     warpgroups compute; they meet at barriers in shared memory only;
//   - products are asynchronous: the next tile's S runs under this tile's softmax, and with two
//     consumers they take turns at the tensor core;
//   - a persistent grid: the next work tile's loads run under the end of this one, O leaves by the
//     copy engine.
#pragma once

#include <type_traits>

#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/forward_v3_pipeline.cuh"
#include "cuda/attention/hide_outside.cuh"
#include "cuda/attention/lazy_softmax.cuh"
#include "cuda/attention/store_rows.cuh"
#include "cuda/config/forward_v3.h"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/swizzle.h"

namespace flashwok::cuda {

template <DType kType_, ForwardV3Config kConfig, bool kSoftcap_>
struct ForwardV3Traits {
  static constexpr DType kType = kType_;
  static constexpr bool kSoftcap = kSoftcap_;
  static constexpr int kConsumers = kConfig.consumers;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kTileQ = kConfig.tile_q();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeadDimV = kConfig.head_dim_v;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr bool kPingPong = kConfig.ping_pong;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kProducerRegisters = kConsumers == 4 ? 24 : 32;
  static constexpr int kConsumerRegisters =
      kConsumers == 2 ? 240 : kConsumers == 3 ? 160 : 112;

  using QTile = SwizzledTile<64, kHeadDim>;        // of one consumer
  using KTile = SwizzledTile<kTileKV, kHeadDim>;
  using VTile = SwizzledTile<kTileKV, kHeadDimV>;
  using OTile = SwizzledTile<64, kHeadDimV>;       // lies where Q lay
  static_assert(OTile::kBytes <= QTile::kBytes);
};

template <class Traits>
struct alignas(1024) ForwardV3Storage {
  unsigned char q[Traits::kQStages][Traits::kConsumers][Traits::QTile::kBytes];
  unsigned char k[Traits::kStages][Traits::KTile::kBytes];
  unsigned char v[Traits::kStages][Traits::VTile::kBytes];
  RingBarriers<Traits::kQStages> q_ring;
  RingBarriers<Traits::kStages> k_ring, v_ring;
  WorkTile work[Traits::kQStages];  // whose Q lies in the stage
};

enum class ForwardV3Barrier : int { kTurn = 1, kWarpgroup = 4 };  // + the consumer's number

// --- Producer: one warp. --------------------------------------------------------------------------

// Q of a work tile, then its K and V from the right; one thread.
template <class Traits>
__device__ __forceinline__ void LoadWork(const ForwardV3Params& p, const WorkTile& work,
                                         ForwardV3Storage<Traits>& storage,
                                         const Ring<Traits::kQStages>& q,
                                         Ring<Traits::kStages>& kv) {
  const Sequence sequence = p.base.At(work.batch);
  const int row_begin = work.q_tile * Traits::kTileQ;
  const KeyTiles tiles = KeyTiles::Of(sequence, row_begin, Traits::kTileQ, Traits::kTileKV);
  const int batch = p.base.cu_seqlens_q ? 0 : work.batch;
  int row = static_cast<int>(sequence.q_begin) + row_begin;
  storage.q_ring.Expect(q, Traits::kConsumers * Traits::QTile::kBytes);
#pragma unroll 1
  for (int c = 0; c < Traits::kConsumers; ++c) {
    LoadTile<typename Traits::QTile>(storage.q[q.stage][c], p.q, storage.q_ring.full[q.stage],
                                     row + 64 * c, work.head, batch);
  }
  const int head_kv = work.head / static_cast<int>(p.base.group);
  row = static_cast<int>(sequence.k_begin) + tiles.end * Traits::kTileKV;
#pragma unroll 1
  for (int left = tiles.end - tiles.begin; left > 0; --left) {
    row -= Traits::kTileKV;
    storage.k_ring.Acquire(kv, Traits::KTile::kBytes);
    LoadTile<typename Traits::KTile>(storage.k[kv.stage], p.k, storage.k_ring.full[kv.stage], row,
                                     head_kv, batch);
    storage.v_ring.Acquire(kv, Traits::VTile::kBytes);
    LoadTile<typename Traits::VTile>(storage.v[kv.stage], p.v, storage.v_ring.full[kv.stage], row,
                                     head_kv, batch);
    kv.Next();
  }
}

template <class Traits>
__device__ __forceinline__ void Produce(const ForwardV3Params& p,
                                        ForwardV3Storage<Traits>& storage) {
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> kv;
  WorkSource source(p);
  for (WorkTile work = source.First();; work = source.Next()) {
    if (threadIdx.x == 0) {
      storage.q_ring.WaitEmpty(q);
      storage.work[q.stage] = work;
      if (work.valid()) {
        LoadWork<Traits>(p, work, storage, q, kv);
      } else {
        ptx::MbarrierArrive(&storage.q_ring.full[q.stage]);
      }
    }
    __syncwarp();
    if (!work.valid()) return;
    q.Next();
  }
}

// --- Consumer: one warpgroup, 64 rows. ------------------------------------------------------------

template <class Traits>
struct ForwardV3Consumer {
  static constexpr int kScores = Traits::kTileKV / 2;  // of a thread
  static constexpr int kValues = Traits::kHeadDimV / 2;
  using Softmax = LazySoftmax<Traits::kTileKV>;

  __device__ __forceinline__ ForwardV3Consumer(const ForwardV3Params& params,
                                               ForwardV3Storage<Traits>& shared, int number)
      : p(params), storage(shared), consumer(number) {}

  const ForwardV3Params& p;
  ForwardV3Storage<Traits>& storage;
  const int consumer;
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> k, v;
  float S[kScores];                  // [64, kTileKV], then P
  std::uint32_t P[kScores / 2];      // the same, packed: an operand
  float O[kValues];                  // [64, kHeadDimV]
  std::uint64_t q_operand;

  // S = Q K^T, asynchronous.
  __device__ __forceinline__ void ScoreProduct() {
    using KTile = typename Traits::KTile;
    using QTile = typename Traits::QTile;
    const std::uint64_t k_operand =
        Descriptor::InnerMajor<KTile>(ptx::SharedAddress(storage.k[k.stage]));
    ptx::WgmmaHold(S);
    ptx::WgmmaFence();
#pragma unroll
    for (int d = 0; d < Traits::kHeadDim; d += 16) {
      const int q_offset = d / QTile::kBlock * QTile::kBlockBytes + d % QTile::kBlock * 2;
      const int k_offset = d / KTile::kBlock * KTile::kBlockBytes + d % KTile::kBlock * 2;
      ptx::Wgmma<Traits::kType, Traits::kTileKV, false>::Shared(
          S, Descriptor::Advance(q_operand, q_offset), Descriptor::Advance(k_operand, k_offset),
          d > 0);
    }
    ptx::WgmmaCommit();
  }

  // O += P V, asynchronous.
  __device__ __forceinline__ void ValueProduct(bool accumulate) {
    using VTile = typename Traits::VTile;
    const std::uint64_t v_operand =
        Descriptor::OuterMajor<VTile>(ptx::SharedAddress(storage.v[v.stage]));
    ptx::WgmmaHold(O);
    ptx::WgmmaFence();
#pragma unroll
    for (int j = 0; j < Traits::kTileKV; j += 16) {
      ptx::Wgmma<Traits::kType, Traits::kHeadDimV, true>::Registers(
          O, reinterpret_cast<const std::uint32_t(&)[4]>(P[j / 4]),
          Descriptor::Advance(v_operand, j * VTile::kWidth), accumulate || j > 0);
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void Pack() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) P[i] = ptx::Pack<Traits::kType>(S[2 * i], S[2 * i + 1]);
  }

  __device__ __forceinline__ void RescaleO(const Softmax& softmax) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) O[i] *= softmax.alpha[i / 2 % 2];
  }

  // Softcap and masks of tile j.
  __device__ __forceinline__ void Scores(const KeyTiles& tiles, const SeenKeys& seen, int j) {
    if constexpr (Traits::kSoftcap) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        S[i] = p.base.softcap_log2 * Tanh(p.base.score_factor * S[i]);
      }
    }
    if (tiles.NeedsMask(j)) HideOutside<Traits::kTileKV>(S, seen, j * Traits::kTileKV);
  }

  __device__ __forceinline__ void WaitTurn() {
    if constexpr (Traits::kPingPong) {
      ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kTurn) + consumer, 256);
    }
  }
  __device__ __forceinline__ void PassTurn() {
    if constexpr (Traits::kPingPong) {
      ptx::BarrierArrive(static_cast<int>(ForwardV3Barrier::kTurn) + 1 - consumer, 256);
    }
  }

  // Tiles of the block that none of these rows sees.
  __device__ __forceinline__ void Skip(int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      WaitTurn();
      PassTurn();
      storage.k_ring.WaitFull(k);
      storage.k_ring.Release(k);
      storage.v_ring.WaitFull(v);
      storage.v_ring.Release(v);
    }
  }

  // The tiles that these rows see, from the right.
  __device__ __forceinline__ void Attend(const KeyTiles& tiles, const SeenKeys& seen,
                                         Softmax& softmax) {
    storage.k_ring.WaitFull(k);
    WaitTurn();
    ScoreProduct();                                        // S = Q K^T
    PassTurn();
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(S);
    storage.k_ring.Release(k);
    Scores(tiles, seen, tiles.end - 1);
    softmax.Update(S);                                     // m, P, l
    Pack();
    bool accumulate = false;
    for (int j = tiles.end - 2; j >= tiles.begin; --j) {
      storage.k_ring.WaitFull(k);
      WaitTurn();
      ScoreProduct();                                      // S of the next tile
      storage.v_ring.WaitFull(v);
      ValueProduct(accumulate);                            // O += P V of this one, under its softmax
      PassTurn();
      ptx::WgmmaWait<1>();
      ptx::WgmmaHold(S);
      storage.k_ring.Release(k);
      Scores(tiles, seen, j);
      const bool moved = softmax.Update(S);                // m, P, l
      ptx::WgmmaWait<0>();
      ptx::WgmmaHold(O);
      storage.v_ring.Release(v);
      if (moved) RescaleO(softmax);                        // O *= alpha
      Pack();
      accumulate = true;
    }
    storage.v_ring.WaitFull(v);
    ValueProduct(accumulate);
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(O);
    storage.v_ring.Release(v);
  }

  // O / l and lse of these rows to slow memory.
  __device__ __forceinline__ void Finalize(const WorkTile& work, int q_begin, int seqlen_q, int row,
                                           Softmax& softmax);
  __device__ __forceinline__ void BulkStore(const WorkTile& work, int row);
  __device__ __forceinline__ void Run();
};

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::BulkStore(const WorkTile& work,
                                                                     int row) {
  using OTile = typename Traits::OTile;
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  unsigned char* tile = storage.q[q.stage][consumer];
  const std::uint32_t base = ptx::SharedAddress(tile);
  const int tile_row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int col = 0; col < Traits::kHeadDimV; col += 16) {
    const float* o = O + col / 2;
    ptx::StoreMatrix4(base + OTile::Offset(tile_row, col + lane / 16 * 8),
                      ptx::Pack<Traits::kType>(o[0], o[1]), ptx::Pack<Traits::kType>(o[2], o[3]),
                      ptx::Pack<Traits::kType>(o[4], o[5]), ptx::Pack<Traits::kType>(o[6], o[7]));
  }
  ptx::FenceProxyAsync();
  ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kWarpgroup) + consumer, 128);
  if (thread != 0) return;
  for (int b = 0; b < OTile::kBlocks; ++b) {
    ptx::TmaStore(&p.o, tile + b * OTile::kBlockBytes, b * OTile::kBlock, row, work.head,
                  p.base.cu_seqlens_q ? 0 : work.batch);
  }
  ptx::TmaStoreCommit();
  ptx::TmaStoreWaitRead<0>();
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Finalize(const WorkTile& work,
                                                                    int q_begin, int seqlen_q,
                                                                    int row, Softmax& softmax) {
  const RowPlace place(work, q_begin, seqlen_q, row);
  softmax.SumLanes();
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    inverse[r] = softmax.row_sum[r] == 0.0f ? 0.0f : 1.0f / softmax.row_sum[r];
    place.StoreLse(p.base, r, softmax.Lse(r));
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) O[i] *= inverse[i / 2 % 2];
  // The copy engine clips at the end of the tensor, not at that of a sequence within it.
  if (p.bulk_store && (row + 64 <= seqlen_q || !p.base.cu_seqlens_q)) {
    BulkStore(work, q_begin + row);
  } else {
    place.StoreO<Traits::kType, Traits::kHeadDimV>(p.base, O);
  }
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Run() {
  if (Traits::kPingPong && consumer == 1) PassTurn();
  for (;;) {
    storage.q_ring.WaitFull(q);
    const WorkTile work = Uniform(storage.work[q.stage]);
    if (!work.valid()) break;
    const Sequence sequence = p.base.At(work.batch);
    const auto q_begin = static_cast<int>(sequence.q_begin);
    const auto seqlen_q = static_cast<int>(sequence.seqlen_q);
    const int row = work.q_tile * Traits::kTileQ + 64 * consumer;
    const KeyTiles all = Uniform(
        KeyTiles::Of(sequence, work.q_tile * Traits::kTileQ, Traits::kTileQ, Traits::kTileKV));
    const KeyTiles tiles = Uniform(KeyTiles::Of(sequence, row, 64, Traits::kTileKV));
    q_operand = Descriptor::InnerMajor<typename Traits::QTile>(
        ptx::SharedAddress(storage.q[q.stage][consumer]));
    Softmax softmax(Traits::kSoftcap ? 1.0f : p.base.score_factor);
    if (tiles.empty()) {
      Skip(all.end - all.begin);
#pragma unroll
      for (int i = 0; i < kValues; ++i) O[i] = 0.0f;
    } else {
      Skip(all.end - tiles.end);
      Attend(tiles, SeenKeys(sequence.mask, row), softmax);
      Skip(tiles.begin - all.begin);
    }
    Finalize(work, q_begin, seqlen_q, row, softmax);
    storage.q_ring.Release(q);
  }
}

// --- Kernel. --------------------------------------------------------------------------------------

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    ForwardV3(const __grid_constant__ ForwardV3Params params) {
  auto& storage = *reinterpret_cast<ForwardV3Storage<Traits>*>(ptx::DynamicShared());
  if (threadIdx.x == 0) {
    storage.q_ring.Init(Traits::kConsumerWarps);
    storage.k_ring.Init(Traits::kConsumerWarps);
    storage.v_ring.Init(Traits::kConsumerWarps);
    ptx::MbarrierFenceInit();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::GiveRegisters<Traits::kProducerRegisters>();
    if (threadIdx.x < 32) Produce<Traits>(params, storage);
  } else {
    ptx::TakeRegisters<Traits::kConsumerRegisters>();
    ForwardV3Consumer<Traits>(params, storage, Uniform(static_cast<int>(threadIdx.x / 128 - 1))).Run();
  }
}

#ifdef __CUDACC__

template <class Traits>
cudaError_t StartForwardV3(const ForwardV3Params& params, int blocks, cudaStream_t stream) {
  constexpr int kShared = sizeof(ForwardV3Storage<Traits>);
  const cudaError_t error = cudaFuncSetAttribute(
      ForwardV3<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  ForwardV3<Traits><<<blocks, Traits::kThreads, kShared, stream>>>(params);
  return cudaGetLastError();
}

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream) {
  constexpr DType kBf16 = DType::kBFloat16;
  constexpr DType kHalf = DType::kFloat16;
  constexpr ForwardV3Config kConfig = kForwardV3Configs[kRow];
  const bool softcap = params.base.softcap_log2 != 0.0f;
  if (dtype == kBf16) {
    return softcap ? StartForwardV3<ForwardV3Traits<kBf16, kConfig, true>>(params, blocks, stream)
                   : StartForwardV3<ForwardV3Traits<kBf16, kConfig, false>>(params, blocks, stream);
  }
  return softcap ? StartForwardV3<ForwardV3Traits<kHalf, kConfig, true>>(params, blocks, stream)
                 : StartForwardV3<ForwardV3Traits<kHalf, kConfig, false>>(params, blocks, stream);
}

#endif

}  // namespace flashwok::cuda
