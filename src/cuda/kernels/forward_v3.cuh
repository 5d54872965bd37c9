// Flash Attention V3 (Shah et al. 2024, Algorithms 1 and 2) for Hopper. Against V2:
//   - roles: a producer warp has the copy engine bring Q, K and V through rings of stages, consumer
//     warpgroups compute; they meet at barriers in shared memory only;
//   - products are asynchronous: the next tile's S runs under this tile's softmax, and with two
//     consumers they take turns at the tensor core;
//   - a persistent grid: the next work tile's loads run under the end of this one, O leaves by the
//     copy engine.
#pragma once

#include "cuda/attention/bulk_store.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v3_params.h"
#include "cuda/attention/forward_v3_pipeline.cuh"
#include "cuda/attention/lazy_softmax.cuh"
#include "cuda/attention/repair_list.cuh"
#include "cuda/attention/seen_keys.cuh"
#include "cuda/attention/time_stamps.cuh"
#include "cuda/config/forward_v3_traits.h"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/tile/gemm_async.cuh"

namespace flashwok::cuda {

template <class Traits>
struct alignas(1024) ForwardV3Storage {
  unsigned char q[Traits::kQStages][Traits::kConsumers][Traits::QTile::kBytes];
  unsigned char k[Traits::kStages][Traits::KTile::kBytes];
  unsigned char v[Traits::kStages][Traits::VTile::kBytes];
  RingBarriers<Traits::kQStages> q_ring;
  RingBarriers<Traits::kStages> k_ring, v_ring;
  WorkItem work[Traits::kQStages];  // whose Q lies in the stage
  int last_repair[Traits::kConsumerWarps];  // each warp's, or -1
};

enum class ForwardV3Barrier : int { kTurn = 1, kWarpgroup = 4 };  // + the consumer's number

// --- Producer: one warp. --------------------------------------------------------------------------

// Q of a work tile, then its K and V from the right; one thread.
template <class Traits>
__device__ __forceinline__ void LoadWork(const ForwardV3Params& p, const WorkItem& work,
                                         ForwardV3Storage<Traits>& storage,
                                         const Ring<Traits::kQStages>& q,
                                         Ring<Traits::kStages>& kv, StampsOf<Traits>& stamps) {
  const Sequence sequence = p.base.At(work.batch);
  const int row_begin = work.q_tile * Traits::kTileQ;
  const KeyTiles tiles = KeyTiles::Of(sequence, row_begin, Traits::kTileQ, Traits::kTileKV);
  const int batch = p.base.cu_seqlens_q ? 0 : work.batch;
  int row = static_cast<int>(sequence.q_begin) + row_begin;
  storage.q_ring.Expect(q, Traits::kConsumers * Traits::QTile::kBytes);
#pragma unroll 1
  for (int c = 0; c < Traits::kConsumers; ++c) {
    LoadTile<typename Traits::QTile>(storage.q[q.stage()][c], p.q, storage.q_ring.full[q.stage()],
                                     row + 64 * c, work.head, batch);
  }
  stamps.Done(V3Step::kLoadQ);
  const int head_kv = work.head / static_cast<int>(p.base.group);
  row = static_cast<int>(sequence.k_begin) + tiles.end * Traits::kTileKV;
#pragma unroll 1
  for (int left = tiles.end - tiles.begin; left > 0; --left) {
    const int j = tiles.begin + left - 1;
    row -= Traits::kTileKV;
    storage.k_ring.Acquire(kv, Traits::KTile::kBytes);
    stamps.Done(V3Step::kPlaceK, j);
    LoadTile<typename Traits::KTile>(storage.k[kv.stage()], p.k, storage.k_ring.full[kv.stage()], row,
                                     head_kv, batch);
    stamps.Done(V3Step::kLoadK, j);
    storage.v_ring.Acquire(kv, Traits::VTile::kBytes);
    stamps.Done(V3Step::kPlaceV, j);
    LoadTile<typename Traits::VTile>(storage.v[kv.stage()], p.v, storage.v_ring.full[kv.stage()], row,
                                     head_kv, batch);
    stamps.Done(V3Step::kLoadV, j);
    kv.Next();
  }
}

template <class Traits>
__device__ __forceinline__ void Produce(const ForwardV3Params& p,
                                        ForwardV3Storage<Traits>& storage) {
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> kv;
  StampsOf<Traits> stamps(p.stamps);
  WorkSource source(p);
  for (WorkItem work = source.First();; work = source.Next()) {
    stamps.Done(V3Step::kNextWork, work);
    if (threadIdx.x == 0) {
      storage.q_ring.WaitEmpty(q);
      stamps.Done(V3Step::kPlaceQ);
      storage.work[q.stage()] = work;
      if (work.valid()) {
        LoadWork<Traits>(p, work, storage, q, kv, stamps);
      } else {
        ptx::MbarrierArrive(&storage.q_ring.full[q.stage()]);
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
      : p(params), storage(shared), consumer(number), stamps(params.stamps) {}

  const ForwardV3Params& p;
  ForwardV3Storage<Traits>& storage;
  const int consumer;
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> kv;  // of the next K; of V where K is done
  float S[kScores];                  // [64, kTileKV], then P
  std::uint32_t P[kScores / 2];      // the same, packed: an operand
  float O[kValues];                  // [64, kHeadDimV]
  int stale_rows;                    // of V's next tile
  StampsOf<Traits> stamps;

  // What is being done: read again where it is needed, as registers are for tiles.
  __device__ __forceinline__ WorkItem Work() const { return Uniform(storage.work[q.stage()]); }
  // This warpgroup's first row.
  __device__ __forceinline__ int Row(const WorkItem& work) const {
    return work.q_tile * Traits::kTileQ + 64 * consumer;
  }

  __device__ __forceinline__ int& LastRepair() const {
    return storage.last_repair[4 * consumer + WarpOfGroup()];
  }

  // S = Q K^T of tile j, asynchronous.
  __device__ __forceinline__ void ScoreProduct(int j) {
    MultiplyTransposed<Traits::kType, typename Traits::QTile, typename Traits::KTile>(
        ptx::SharedAddress(storage.q[q.stage()][consumer]), ptx::SharedAddress(storage.k[kv.stage()]), S);
    stamps.Done(V3Step::kIssueS, j);
  }

  // O += P V of tile j, asynchronous.
  __device__ __forceinline__ void ValueProduct(int j, bool accumulate) {
    Multiply<Traits::kType, typename Traits::VTile>(P, ptx::SharedAddress(storage.v[kv.Before().stage()]),
                                                    accumulate, O);
    stamps.Done(V3Step::kIssueO, j);
  }

  // Softcap and masks of tile j.
  __device__ __forceinline__ void Scores(const KeyTiles& tiles, int j) {
    if constexpr (Traits::kSoftcap) {
      CapScores(p.base.score_factor, p.base.softcap_log2, S);
    }
    if (tiles.NeedsMask(j)) {
      const WorkItem work = Work();
      const SeenKeys seen(p.base.At(work.batch).mask, Row(work));
      HideOutside<Traits::kTileKV>(S, seen, j * Traits::kTileKV);
    }
  }

  __device__ __forceinline__ void WaitTurn(int j) {
    if constexpr (Traits::kPingPong) {
      ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kTurn) + consumer, 256);
    }
    stamps.Done(V3Step::kTurn, j);
  }
  __device__ __forceinline__ void PassTurn() {
    if constexpr (Traits::kPingPong) {
      ptx::BarrierArrive(static_cast<int>(ForwardV3Barrier::kTurn) + 1 - consumer, 256);
    }
  }

  __device__ __forceinline__ void SyncWarpgroup() const {
    ptx::BarrierSync(static_cast<int>(ForwardV3Barrier::kWarpgroup) + consumer, 128);
  }

  // V of tile j. Rows past the last key can hold anything: they become zeros, which P's zeros leave
  // alone. Every consumer writes the same.
  __device__ __forceinline__ void WaitValues(int j) {
    storage.v_ring.WaitFull(kv.Before());
    stamps.Done(V3Step::kV, j);
    if (stale_rows == 0) return;
    ZeroLastRows<typename Traits::VTile>(storage.v[kv.Before().stage()], stale_rows);
    stale_rows = 0;
    ptx::FenceProxyAsync();
    SyncWarpgroup();
  }

  // Tiles of the block that none of these rows sees: `count` from `first`.
  __device__ __forceinline__ void Skip(int first, int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      WaitTurn(first + count - 1);
      PassTurn();
      storage.k_ring.WaitFull(kv);
      storage.v_ring.WaitFull(kv);
      __syncwarp();  // no lane gives back what another waits for
      stamps.Done(V3Step::kSkip, first + count - 1);
      storage.k_ring.Release(kv);
      storage.v_ring.Release(kv);
      kv.Next();
    }
  }

  // Gives back the place of Q, where O is stored from. The storing warp comes for it late, when the
  // copy engine has read it: in the next work, if Q has a second place.
  __device__ __forceinline__ void ReleaseQ() {
    if (WarpOfGroup() != 0) storage.q_ring.Release(q);
    q.Next();
    if (Traits::kQStages == 1) ReleaseStored();
  }
  __device__ __forceinline__ void ReleaseStored() {
    if (threadIdx.x % 128 != 0 || q.count == 0) return;
    ptx::TmaStoreWaitRead<0>();
    stamps.Done(V3Step::kStored);
    ptx::MbarrierArrive(&storage.q_ring.empty[q.Before().stage()]);
  }

  // The tiles that these rows see, from the right.
  __device__ __forceinline__ void Attend(const KeyTiles& tiles, Softmax& softmax) {
    storage.k_ring.WaitFull(kv);
    stamps.Done(V3Step::kK, tiles.end - 1);
    WaitTurn(tiles.end - 1);
    ScoreProduct(tiles.end - 1);           // S = Q K^T
    PassTurn();
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(S);
    stamps.Done(V3Step::kS, tiles.end - 1);
    storage.k_ring.Release(kv);
    kv.Next();
    Scores(tiles, tiles.end - 1);
    softmax.Update(S);                     // m, P, l
    stamps.Done(V3Step::kSoftmax, tiles.end - 1);
    PackRows<Traits::kType>(S, P);
    stamps.Done(V3Step::kPack, tiles.end - 1);
    if (Traits::kQStages > 1) ReleaseStored();
    bool accumulate = false;
    for (int j = tiles.end - 2; j >= tiles.begin; --j) {
      storage.k_ring.WaitFull(kv);
      stamps.Done(V3Step::kK, j);
      WaitTurn(j);
      ScoreProduct(j);                     // S of the next tile
      WaitValues(j + 1);
      ValueProduct(j + 1, accumulate);     // O += P V of this one, under its softmax
      PassTurn();
      ptx::WgmmaWait<1>();
      ptx::WgmmaHold(S);
      stamps.Done(V3Step::kS, j);
      storage.k_ring.Release(kv);
      Scores(tiles, j);
      const bool moved = softmax.Update(S);  // m, P, l
      ptx::WgmmaAfter(softmax.row_sum[0] + softmax.row_sum[1]);
      stamps.Done(V3Step::kSoftmax, j);
      ptx::WgmmaWait<0>();
      ptx::WgmmaHold(O);
      stamps.Done(V3Step::kO, j + 1);
      storage.v_ring.Release(kv.Before());
      kv.Next();
      if (moved) softmax.Rescale(O);       // O *= alpha
      stamps.Done(V3Step::kRescale, j);
      PackRows<Traits::kType>(S, P);
      stamps.Done(V3Step::kPack, j);
      accumulate = true;
    }
    WaitValues(tiles.begin);
    ValueProduct(tiles.begin, accumulate);
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(O);
    stamps.Done(V3Step::kO, tiles.begin);
    storage.v_ring.Release(kv.Before());
  }

  // O / l and lse of these rows to slow memory; `masked`: some of the scores were hidden.
  __device__ __forceinline__ void Finalize(Softmax& softmax, bool masked);
  __device__ __forceinline__ void Run();
};

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Finalize(Softmax& softmax,
                                                                    bool masked) {
  using OTile = typename Traits::OTile;
  const WorkItem work = Work();
  const int row = Row(work);
  const Sequence sequence = p.base.At(work.batch);
  const int warp_row = row + WarpOfGroup() * 16;
  softmax.SumLanes();
  StoreLse(p.base, work.batch, work.head, sequence, warp_row, softmax);
  const float inverse[2] = {softmax.Inverse(0), softmax.Inverse(1)};
#pragma unroll
  for (int i = 0; i < kValues; ++i) O[i] *= inverse[i / 2 % 2];
  if (masked && p.repairs.list != nullptr) {
    NoteRepairs(p.repairs, work, warp_row, O, softmax, LastRepair());
  }
  stamps.Done(V3Step::kFinalize);
  // The copy engine clips at the end of the tensor, not at that of a sequence within it.
  if (p.bulk_store && !(p.base.cu_seqlens_q && row + 64 > sequence.seqlen_q)) {
    unsigned char* tile = storage.q[q.stage()][consumer];
    StageRows<Traits::kType, OTile>(O, ptx::SharedAddress(tile));
    ptx::FenceProxyAsync();
    SyncWarpgroup();
    stamps.Done(V3Step::kStage);
    if (threadIdx.x % 128 == 0) {
      StoreTile<OTile>(tile, p.o, static_cast<int>(sequence.q_begin) + row, work.head,
                       p.base.cu_seqlens_q ? 0 : work.batch);
    }
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
  if (LaneIndex() == 0) LastRepair() = -1;
  __syncwarp();
  for (;;) {
    storage.q_ring.WaitFull(q);
    const WorkItem work = Work();
    stamps.Done(V3Step::kQ, work);
    if (!work.valid()) break;
    const Sequence sequence = p.base.At(work.batch);
    const KeyTiles all = Uniform(
        KeyTiles::Of(sequence, work.q_tile * Traits::kTileQ, Traits::kTileQ, Traits::kTileKV));
    const KeyTiles tiles = Uniform(KeyTiles::Of(sequence, Row(work), 64, Traits::kTileKV));
    // Of a tile that the copy engine does not clip.
    const int past_end = all.end * Traits::kTileKV - static_cast<int>(sequence.seqlen_k);
    stale_rows = (p.base.cu_seqlens_k || p.base.seqused_k) && past_end > 0 ? past_end : 0;
    Softmax softmax(Traits::kSoftcap ? 1.0f : p.base.score_factor);
    if (tiles.empty()) {
      if (Traits::kQStages > 1) ReleaseStored();
      Skip(all.begin, all.end - all.begin);
#pragma unroll
      for (int i = 0; i < kValues; ++i) O[i] = 0.0f;
    } else {
      if (tiles.end < all.end) stale_rows = 0;
      Skip(tiles.end, all.end - tiles.end);
      Attend(tiles, softmax);
      Skip(all.begin, tiles.begin - all.begin);
    }
    Finalize(softmax, tiles.AnyMask());
    stamps.Done(V3Step::kStore);
    ReleaseQ();
  }
  if (threadIdx.x % 128 == 0) ptx::TmaStoreWaitRead<0>();
  stamps.Done(V3Step::kStored);
  if (p.repairs.list == nullptr) return;
  if (threadIdx.x % 128 == 0) ptx::TmaStoreWait<0>();
  SyncWarpgroup();
  Repair<Traits::kType>(p.base, p.repairs, LastRepair());
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

#endif

}  // namespace flashwok::cuda
