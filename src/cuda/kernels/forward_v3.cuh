// Flash Attention V3 (Shah et al. 2024, Algorithms 1 and 2) for Hopper. Against V2:
//   - roles: a producer warp has the copy engine bring Q, K and V through rings of stages, consumer
//     warpgroups compute; they meet at barriers in shared memory only;
//   - products are asynchronous: the next tile's S runs under this tile's softmax, and with two
//     consumers they take turns at the tensor core;
//   - a persistent grid: the next work tile's loads and its first S run under the end of this one,
//     O leaves by the copy engine.
#pragma once

#include "cuda/attention/bulk_store.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/forward_v3_producer.cuh"
#include "cuda/attention/lazy_softmax.cuh"
#include "cuda/attention/repair_list.cuh"
#include "cuda/attention/seen_keys.cuh"
#include "cuda/config/built.h"
#include "cuda/config/time_stamps.h"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/tile/gemm_async.cuh"

namespace flashwok::cuda {

// --- Consumer: one warpgroup, 64 rows. ------------------------------------------------------------

template <class Traits>
struct ForwardV3Consumer {
  static constexpr int kScores = Traits::kTileKV / 2;  // of a thread
  static constexpr int kValues = Traits::kHeadDimV / 2;
  // O lies in Q's place when the copy engine fetches it; else Q's place is free at the last product
  // with it, and the warps store.
  static constexpr bool kStaged = Traits::kQStages > 1;
  using Softmax = LazySoftmax<Traits::kTileKV>;
  using QRing = Ring<Traits::kQStages>;
  using KVRing = Ring<Traits::kStages>;

  __device__ __forceinline__ ForwardV3Consumer(const ForwardV3Params& params,
                                               ForwardV3Storage<Traits>& shared, int number)
      : p(params), storage(shared), consumer(number), group{number}, stamps(params.stamps) {}

  const ForwardV3Params& p;
  ForwardV3Storage<Traits>& storage;
  const int consumer;
  const ConsumerGroup<Traits> group;
  QRing q;
  KVRing kv;                         // of the next K product; of V the place before it
  float S[kScores];                  // [64, kTileKV], then P
  std::uint32_t P[kScores / 2];      // the same, packed: an operand
  float O[kValues];                  // [64, kHeadDimV]
  StampsOf<Traits> stamps;

  __device__ __forceinline__ const RowsPlan& Rows(const QRing& at) const {
    return storage.Plan(at).consumers[consumer];
  }
  // Whether there is a work; waits for its Q.
  __device__ __forceinline__ bool Take(const QRing& at) {
    storage.q_ring.WaitFull(at);
    stamps.Done(V3Step::kQ, storage.Plan(at).block.work);
    return Uniform(storage.Plan(at).block.work.q_tile) >= 0;
  }

  __device__ __forceinline__ bool First() const { return threadIdx.x % 128 == 0; }
  __device__ __forceinline__ std::int64_t& LastRepair() const {
    return storage.last_repair[4 * consumer + WarpOfGroup()];
  }

  __device__ __forceinline__ std::uint64_t Queries(const QRing& at) const {
    return Descriptor::InnerMajor<typename Traits::QTile>(
        Uniform(ptx::SharedAddress(storage.q[at.stage()][consumer])));
  }
  // S = Q K^T of tile j, asynchronous, in turn.
  __device__ __forceinline__ void ScoreProduct(std::uint64_t queries, const KVRing& keys, int j) {
    storage.k_ring.WaitFull(kv);
    stamps.Done(V3Step::kK, j);
    group.WaitTurn();
    stamps.Done(V3Step::kTurn, j);
    using QTile = typename Traits::QTile;
    using KTile = typename Traits::KTile;
    MultiplyTransposed<Traits::kType, QTile, KTile>(
        queries, Descriptor::InnerMajor<KTile>(ptx::SharedAddress(storage.k), keys.stage()), S);
    stamps.Done(V3Step::kIssueS, j);
  }

  // O += P V of tile j + 1, asynchronous.
  __device__ __forceinline__ void ValueProduct(const KVRing& values, int j, bool accumulate) {
    using VTile = typename Traits::VTile;
    Multiply<Traits::kType, VTile>(
        P, Descriptor::OuterMajor<VTile>(ptx::SharedAddress(storage.v), values.stage()), accumulate,
        O);
    stamps.Done(V3Step::kIssueO, j + 1);
  }

  // Softcap and masks of tile j of the work at `at`.
  __device__ __forceinline__ void Scores(const QRing& at, const KeyTiles& tiles, int j) {
    if constexpr (Traits::kSoftcap) CapScores(p.base.score_factor, p.base.softcap_log2, S);
    if (tiles.NeedsMask(j)) [[unlikely]] {
      const auto& plan = storage.Plan(at);
      const int key = j * Traits::kTileKV;
      HideOutside<Traits::kTileKV>(S, plan.consumers[consumer], plan.block.keys, key);
    }
  }

  // V of tile j + 1, of these rows the first or not. In the first, rows past the last key can hold
  // anything: they become zeros, which P's zeros leave alone. Every consumer writes the same.
  __device__ __forceinline__ void WaitValues(int j, bool first_tile) {
    using VTile = typename Traits::VTile;
    const KVRing values = kv.Before();
    storage.v_ring.WaitFull(values);
    stamps.Done(V3Step::kV, j + 1);
    if (!first_tile) [[likely]] return;
    const int stale_keys = Uniform(Rows(q).before == 0 ? storage.Plan(q).block.stale_keys : 0);
    if (stale_keys == 0) [[likely]] return;
    ClearLastRows<VTile>(storage.v[values.stage()], stale_keys);
    ptx::FenceProxyAsync();
    group.Sync();
  }

  // Tiles of the block that none of these rows sees: the `count` before `end`.
  __device__ __forceinline__ void Skip(int end, int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      group.WaitTurn();
      group.PassTurn();
      storage.k_ring.WaitFull(kv);
      storage.v_ring.WaitFull(kv);
      __syncwarp();  // no lane gives back what another waits for
      stamps.Done(V3Step::kSkip, --end);
      storage.k_ring.Release(kv);
      storage.v_ring.Release(kv);
      kv.Next();
    }
  }

  // Where O is stored from Q's place, the storing thread gives it back late, when the copy engine
  // has read it.
  __device__ __forceinline__ void Settle() {
    if (!kStaged || q.count == 0) return;
    if (First()) {
      ptx::TmaStoreWaitRead<0>();
      stamps.Done(V3Step::kStored);
      ptx::MbarrierArrive(&storage.q_ring.empty[q.Before().stage()]);
    }
    __syncwarp();
  }

  __device__ __forceinline__ Softmax Fresh() const {
    return Softmax(Traits::kSoftcap ? 1.0f : p.base.score_factor);
  }

  // S of tile `next`, and O += P V of tile j + 1, of the work's the first or not, which runs on
  // under what follows. The operands' places are found once a warp, ahead of what they wait for.
  __device__ __forceinline__ void Products(const QRing& at, int next, int j, bool first) {
    const std::uint64_t queries = Queries(at);
    const KVRing here = kv.InWarp();
    ScoreProduct(queries, here, next);     // S of the next tile
    WaitValues(j, first);
    ValueProduct(here.Before(), j, !first);  // O += P V of this one, under its softmax
    group.PassTurn();
    ptx::WgmmaWait<1>();
    ptx::WgmmaHold(S);
    stamps.Done(V3Step::kS, next);
    storage.k_ring.Release(kv);
  }
  __device__ __forceinline__ void AwaitValues(const Softmax& softmax, int j) {
    ptx::WgmmaAfter(softmax.row_sum[0] + softmax.row_sum[1]);
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(O);
    stamps.Done(V3Step::kO, j + 1);
    storage.v_ring.Release(kv.Before());
    kv.Next();
  }
  // Whether some keys are hidden, and where the warp puts rows to be done again.
  __device__ __forceinline__ bool MayRepair() const {
    return p.repairs != nullptr && Uniform(int{Rows(q).tiles.AnyMask()}) != 0;
  }
  __device__ __forceinline__ std::int64_t RepairNumber(const BlockPlan& plan) const {
    return std::int64_t{plan.index} * Traits::kConsumerWarps + 4 * consumer + WarpOfGroup();
  }
  // Of the block's rows, this warp's first.
  __device__ __forceinline__ int BlockRow() const { return 64 * consumer + 16 * WarpOfGroup(); }

  struct Factors {
    float row0, row1;
  };
  __device__ __forceinline__ void Attend(Softmax& softmax);
  __device__ __forceinline__ Factors Close(Softmax& softmax);
  __device__ __forceinline__ void Finalize(const Factors& factors);
  __device__ __forceinline__ void Run();
};

// When all scores of these rows are known: stores lse; what O is to be multiplied by.
template <class Traits>
__device__ __forceinline__ auto ForwardV3Consumer<Traits>::Close(Softmax& softmax) -> Factors {
  softmax.SumLanes();
  const BlockPlan& plan = storage.Plan(q).block;
  const int first = BlockRow() + FragmentRow();
  const bool may_repair = MayRepair();
  if (FragmentCol() == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (p.base.lse && first + 8 * r < plan.rows) {
        p.base.lse.At(plan.work.batch, plan.work.head, plan.q_row + first + 8 * r) = softmax.Lse(r);
      }
      if (may_repair) p.repairs[RepairNumber(plan)].lse[FragmentRow() + 8 * r] = softmax.Lse(r);
    }
  }
  __syncwarp();
  stamps.Done(V3Step::kClose);
  return {softmax.Inverse(0), softmax.Inverse(1)};
}

// O / l of these rows to slow memory.
template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Finalize(const Factors& factors) {
  using OTile = typename Traits::OTile;
  const BlockPlan& plan = storage.Plan(q).block;
  const WorkItem work = plan.work;
  const int warp_row = BlockRow();
#pragma unroll
  for (int i = 0; i < kValues; ++i) O[i] *= i / 2 % 2 == 0 ? factors.row0 : factors.row1;
  if (MayRepair()) {
    const int row = work.q_tile * Traits::kTileQ + warp_row;
    const unsigned bad = RowsNotFinite(O);
    if (bad != 0) AddRepair(p.repairs, RepairNumber(plan), work, row, bad, LastRepair());
  }
  stamps.Done(V3Step::kFinalize);
  const auto address = [&](int at) {
    return p.base.o.Row(work.batch, plan.q_row + warp_row + at, work.head);
  };
  const BlockTarget<decltype(address)> target{address, p.base.o.dtype, p.bulk_store,
                                              plan.rows - warp_row,
                                              static_cast<int>(p.base.head_dim_v)};
  if (!p.bulk_store) {
    StoreElements<Traits::kType>(O, target);
  } else if (!kStaged || (p.base.cu_seqlens_q && 64 * consumer + 64 > Uniform(plan.rows))) {
    StoreQuads<Traits::kType>(O, target);
  } else {
    unsigned char* tile = storage.q[q.stage()][consumer];
    StageRows<Traits::kType, OTile>(O, ptx::SharedAddress(tile));
    ptx::FenceProxyAsync();
    group.Sync();
    stamps.Done(V3Step::kStage);
    const int batch = p.base.cu_seqlens_q ? 0 : work.batch;
    if (First()) StoreTile<OTile>(tile, p.o, plan.q_row + 64 * consumer, work.head, batch);
  }
  __syncwarp();
  stamps.Done(V3Step::kStore);
  if (kStaged && WarpOfGroup() != 0) storage.q_ring.Release(q);
  __syncwarp();
}

// The tiles that these rows see, from the right, and those of each work that follows without a gap.
// The last one's end is left to be done.
template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Attend(Softmax& softmax) {
  KeyTiles tiles = Uniform(Rows(q).tiles);
  int j = tiles.end - 1;
  Skip(EndTile<Traits>(p, storage.Plan(q).block), Uniform(Rows(q).before));
  const std::uint64_t queries = Queries(q);
  ScoreProduct(queries, kv.InWarp(), j);  // S = Q K^T
  group.PassTurn();
  ptx::WgmmaWait<0>();
  ptx::WgmmaHold(S);
  stamps.Done(V3Step::kS, j);
  storage.k_ring.Release(kv);
  kv.Next();
  if (!kStaged && j == tiles.begin) storage.q_ring.Release(q);
  Scores(q, tiles, j);
  softmax.Update(S);                     // m, P, l
  stamps.Done(V3Step::kSoftmax, j, softmax.row_sum);
  PackRows<Traits::kType>(S, P);
  stamps.Done(V3Step::kPack, j);
  for (;;) {
    for (--j; j >= tiles.begin; --j) {
      const bool first = j + 2 == tiles.end;
      Products(q, j, j, first);
      if (!kStaged && j == tiles.begin) storage.q_ring.Release(q);
      Scores(q, tiles, j);
      const bool moved = softmax.Update(S);  // m, P, l
      stamps.Done(V3Step::kSoftmax, j, softmax.row_sum);
      if (first) Settle();
      AwaitValues(softmax, j);
      if (moved) softmax.Rescale(O);         // O *= alpha
      stamps.Done(V3Step::kRescale, j);
      PackRows<Traits::kType>(S, P);
      stamps.Done(V3Step::kPack, j);
    }
    if constexpr (!kStaged) break;
    // The first S of the next work under the last P V of this one.
    const bool first = j + 2 == tiles.end;
    if (first) Settle();
    const QRing at = q.After().InWarp();
    storage.q_ring.WaitFull(at);
    stamps.Done(V3Step::kQ, storage.Plan(at).block.work);
    if (Uniform(Rows(at).joins) == 0) break;
    Products(at, Rows(at).tiles.end - 1, j, first);
    const Factors factors = Close(softmax);
    softmax = Fresh();
    const int passed = j;
    tiles = Uniform(Rows(at).tiles);
    j = tiles.end - 1;
    Scores(at, tiles, j);
    softmax.Update(S);
    stamps.Done(V3Step::kSoftmax, j, softmax.row_sum);
    AwaitValues(softmax, passed);
    PackRows<Traits::kType>(S, P);
    stamps.Done(V3Step::kPack, j);
    Finalize(factors);
    q = at;
  }
  WaitValues(j, j + 2 == tiles.end);
  ValueProduct(kv.Before().InWarp(), j, j + 2 != tiles.end);
  ptx::WgmmaWait<0>();
  ptx::WgmmaHold(O);
  stamps.Done(V3Step::kO, j + 1);
  storage.v_ring.Release(kv.Before());
  Skip(tiles.begin, Uniform(Rows(q).after));
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Run() {
  if (consumer == Traits::kConsumers - 1) group.PassTurn();
  if (LaneIndex() == 0) LastRepair() = -1;
  __syncwarp();
  for (; Take(q); q = q.After().InWarp()) {
    Softmax softmax = Fresh();
    if (Uniform(Rows(q).tiles.begin) < Uniform(Rows(q).tiles.end)) {
      Attend(softmax);
    } else {
      Settle();
      if (!kStaged) storage.q_ring.Release(q);
      Skip(EndTile<Traits>(p, storage.Plan(q).block), Uniform(Rows(q).before));
#pragma unroll
      for (int i = 0; i < kValues; ++i) O[i] = 0.0f;
    }
    Finalize(Close(softmax));
  }
  if (First()) ptx::TmaStoreWaitRead<0>();
  stamps.Done(V3Step::kStored);
  if (p.repairs == nullptr) return;
  if (First()) ptx::TmaStoreWait<0>();
  group.Sync();
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
    if (threadIdx.x < 32) ForwardV3Producer<Traits>(params, storage).Run();
  } else {
    ptx::TakeRegisters<Traits::kConsumerRegisters>();
    const int consumer = Uniform(static_cast<int>(threadIdx.x / 128 - 1));
    ForwardV3Consumer<Traits>(params, storage, consumer).Run();
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

template <DType kType, ForwardV3Config kConfig>
cudaError_t StartForwardV3(const ForwardV3Params& params, int blocks, cudaStream_t stream) {
  using Plain = AsBuilt<ForwardV3Traits<kType, kConfig, false>>;
  using Capped = AsBuilt<ForwardV3Traits<kType, WithSoftcap(kConfig), true>>;
  return params.base.softcap_log2 != 0.0f ? StartForwardV3<Capped>(params, blocks, stream)
                                          : StartForwardV3<Plain>(params, blocks, stream);
}

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream) {
  constexpr ForwardV3Config kConfig = kForwardV3Configs[kRow];
  return VisitDType(
      dtype, [&]<DType kType>() { return StartForwardV3<kType, kConfig>(params, blocks, stream); });
}

#endif

}  // namespace flashwok::cuda
