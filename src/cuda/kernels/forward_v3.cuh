// Flash Attention V3 (Shah et al. 2024, Algorithms 1 and 2) for Hopper. Against V2:
//   - roles: a producer warp has the copy engine bring Q, K and V through rings of stages, consumer
//     warpgroups compute; they meet at barriers in shared memory only;
//   - products are asynchronous: the next tile's S runs under this tile's softmax, and with two
//     consumers they take turns at the tensor core;
//   - a persistent grid: the next work tile's loads run under the end of this one, O leaves by the
//     copy engine.
#pragma once

#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/forward_v3_pipeline.cuh"
#include "cuda/attention/lazy_softmax.cuh"
#include "cuda/attention/repair_list.cuh"
#include "cuda/attention/seen_keys.cuh"
#include "cuda/config/forward_v3_traits.h"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/tile/gemm_async.cuh"

namespace flashwok::cuda {

// tanh to about 1e-6 absolute.
__device__ __forceinline__ float Tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + ptx::Exp2(2.0f * kLog2E * x));
}

template <class Traits>
struct alignas(1024) ForwardV3Storage {
  unsigned char q[Traits::kQStages][Traits::kConsumers][Traits::QTile::kBytes];
  unsigned char k[Traits::kStages][Traits::KTile::kBytes];
  unsigned char v[Traits::kStages][Traits::VTile::kBytes];
  RingBarriers<Traits::kQStages> q_ring;
  RingBarriers<Traits::kStages> k_ring, v_ring;
  WorkItem work[Traits::kQStages];  // whose Q lies in the stage
};

enum class ForwardV3Barrier : int { kTurn = 1, kWarpgroup = 4 };  // + the consumer's number

// --- Producer: one warp. --------------------------------------------------------------------------

// Q of a work tile, then its K and V from the right; one thread.
template <class Traits>
__device__ __forceinline__ void LoadWork(const ForwardV3Params& p, const WorkItem& work,
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
  for (WorkItem work = source.First();; work = source.Next()) {
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
  int stale_rows;        // of V's next tile
  int last_repair = -1;  // of this warp's

  // S = Q K^T, asynchronous.
  __device__ __forceinline__ void ScoreProduct() {
    MultiplyTransposed<Traits::kType, typename Traits::QTile, typename Traits::KTile>(
        ptx::SharedAddress(storage.q[q.stage][consumer]), ptx::SharedAddress(storage.k[k.stage]), S);
  }

  // O += P V, asynchronous.
  __device__ __forceinline__ void ValueProduct(bool accumulate) {
    Multiply<Traits::kType, typename Traits::VTile>(P, ptx::SharedAddress(storage.v[v.stage]),
                                                    accumulate, O);
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

  __device__ __forceinline__ void SyncWarpgroup() const {
    ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kWarpgroup) + consumer, 128);
  }

  // V of the next tile. Rows past the last key can hold anything: they become zeros, which P's
  // zeros leave alone. Every consumer writes the same.
  __device__ __forceinline__ void WaitValues() {
    using VTile = typename Traits::VTile;
    storage.v_ring.WaitFull(v);
    if (stale_rows == 0) return;
    constexpr int kChunks = VTile::kWidth / 16;
    const int first = (VTile::kRows - stale_rows) * kChunks;
    for (int b = 0; b < VTile::kBlocks; ++b) {
      auto* chunks = reinterpret_cast<uint4*>(storage.v[v.stage] + b * VTile::kBlockBytes);
      for (int i = first + static_cast<int>(threadIdx.x % 128); i < VTile::kRows * kChunks;
           i += 128) {
        chunks[i] = uint4{0, 0, 0, 0};
      }
    }
    stale_rows = 0;
    ptx::FenceProxyAsync();
    SyncWarpgroup();
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
      WaitValues();
      ValueProduct(accumulate);                            // O += P V of this one, under its softmax
      PassTurn();
      ptx::WgmmaWait<1>();
      ptx::WgmmaHold(S);
      storage.k_ring.Release(k);
      Scores(tiles, seen, j);
      const bool moved = softmax.Update(S);                // m, P, l
      ptx::WgmmaAfter(softmax.row_sum[0] + softmax.row_sum[1]);
      ptx::WgmmaWait<0>();
      ptx::WgmmaHold(O);
      storage.v_ring.Release(v);
      if (moved) RescaleO(softmax);                        // O *= alpha
      Pack();
      accumulate = true;
    }
    WaitValues();
    ValueProduct(accumulate);
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(O);
    storage.v_ring.Release(v);
  }

  // O / l and lse of these rows to slow memory; `masked`: some of the scores were hidden.
  __device__ __forceinline__ void Finalize(const WorkItem& work, int row, Softmax& softmax,
                                           bool masked);
  __device__ __forceinline__ void StageO();
  __device__ __forceinline__ void Run();
};

// O of these rows to where their Q lay.
template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::StageO() {
  const std::uint32_t base = ptx::SharedAddress(storage.q[q.stage][consumer]);
  const int row = WarpIndex() % 4 * 16 + LaneIndex() % 16;
#pragma unroll
  for (int col = 0; col < Traits::kHeadDimV; col += 16) {
    const float* o = O + col / 2;
    ptx::StoreMatrix4(base + Traits::OTile::Offset(row, col + LaneIndex() / 16 * 8),
                      ptx::Pack<Traits::kType>(o[0], o[1]), ptx::Pack<Traits::kType>(o[2], o[3]),
                      ptx::Pack<Traits::kType>(o[4], o[5]), ptx::Pack<Traits::kType>(o[6], o[7]));
  }
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Finalize(const WorkItem& work, int row,
                                                                    Softmax& softmax,
                                                                    bool masked) {
  using OTile = typename Traits::OTile;
  const Sequence sequence = p.base.At(work.batch);
  const int warp_row = row + WarpIndex() % 4 * 16;
  softmax.SumLanes();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = warp_row + FragmentRow() + 8 * r;
    if (p.base.lse && FragmentCol() == 0 && at < sequence.seqlen_q) {
      p.base.lse.At(work.batch, work.head, sequence.q_begin + at) = softmax.Lse(r);
    }
  }
  const float inverse[2] = {softmax.Inverse(0), softmax.Inverse(1)};
#pragma unroll
  for (int i = 0; i < kValues; ++i) O[i] *= inverse[i / 2 % 2];
  if (masked && p.repairs.list != nullptr) {
    const unsigned bad = RowsNotFinite(O);
    if (bad != 0) {
      last_repair =
          AddRepair(p.repairs, work, warp_row, bad, last_repair, softmax.Lse(0), softmax.Lse(1));
    }
  }
  // The copy engine clips at the end of the tensor, not at that of a sequence within it.
  if (p.bulk_store && !(p.base.cu_seqlens_q && row + 64 > sequence.seqlen_q)) {
    StageO();
    ptx::FenceProxyAsync();
    SyncWarpgroup();
    if (threadIdx.x % 128 != 0) return;
    for (int b = 0; b < OTile::kBlocks; ++b) {
      ptx::TmaStore(&p.o, storage.q[q.stage][consumer] + b * OTile::kBlockBytes, b * OTile::kBlock,
                    static_cast<int>(sequence.q_begin) + row, work.head,
                    p.base.cu_seqlens_q ? 0 : work.batch);
    }
    ptx::TmaStoreCommit();
    ptx::TmaStoreWaitRead<0>();
    return;
  }
  const auto address = [&](int at) {
    return p.base.o.Row(work.batch, sequence.q_begin + warp_row + at, work.head);
  };
  StoreElements<Traits::kType>(
      O, BlockTarget<decltype(address)>{address, p.base.o.dtype, false,
                                        static_cast<int>(sequence.seqlen_q) - warp_row,
                                        static_cast<int>(p.base.head_dim_v)});
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Run() {
  if (Traits::kPingPong && consumer == 1) PassTurn();
  for (;;) {
    storage.q_ring.WaitFull(q);
    const WorkItem work = Uniform(storage.work[q.stage]);
    if (!work.valid()) break;
    const Sequence sequence = p.base.At(work.batch);
    const int row = work.q_tile * Traits::kTileQ + 64 * consumer;
    const KeyTiles all = Uniform(
        KeyTiles::Of(sequence, work.q_tile * Traits::kTileQ, Traits::kTileQ, Traits::kTileKV));
    const KeyTiles tiles = Uniform(KeyTiles::Of(sequence, row, 64, Traits::kTileKV));
    // Of a tile that the copy engine does not clip.
    const int past_end = all.end * Traits::kTileKV - static_cast<int>(sequence.seqlen_k);
    stale_rows = (p.base.cu_seqlens_k || p.base.seqused_k) && past_end > 0 ? past_end : 0;
    Softmax softmax(Traits::kSoftcap ? 1.0f : p.base.score_factor);
    if (tiles.empty()) {
      Skip(all.end - all.begin);
#pragma unroll
      for (int i = 0; i < kValues; ++i) O[i] = 0.0f;
    } else {
      if (tiles.end < all.end) stale_rows = 0;
      Skip(all.end - tiles.end);
      Attend(tiles, SeenKeys(sequence.mask, row), softmax);
      Skip(tiles.begin - all.begin);
    }
    Finalize(work, row, softmax, tiles.AnyMask());
    storage.q_ring.Release(q);
  }
  if (p.repairs.list == nullptr) return;
  if (threadIdx.x % 128 == 0) ptx::TmaStoreWait<0>();
  SyncWarpgroup();
  Repair<Traits::kType>(p.base, p.repairs, last_repair);
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
