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
  using Plan = WorkPlan<Traits::kConsumers>;

  __device__ __forceinline__ ForwardV3Consumer(const ForwardV3Params& params,
                                               ForwardV3Storage<Traits>& shared, int number)
      : p(params), storage(shared), consumer(number), group{number} {}

  const ForwardV3Params& p;
  ForwardV3Storage<Traits>& storage;
  const int consumer;
  const ConsumerGroup<Traits> group;
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> kv;  // of the next K product; of V the place before it
  float S[kScores];                  // [64, kTileKV], then P
  std::uint32_t P[kScores / 2];      // the same, packed: an operand
  float O[kValues];                  // [64, kHeadDimV]

  __device__ __forceinline__ const Plan& PlanOf(const Ring<Traits::kQStages>& at) const {
    return storage.plans[at.count % 4];
  }
  __device__ __forceinline__ const RowsPlan& Rows(const Ring<Traits::kQStages>& at) const {
    return PlanOf(at).consumers[consumer];
  }
  // Whether there is a work; waits for its Q.
  __device__ __forceinline__ bool Take(const Ring<Traits::kQStages>& at) {
    storage.q_ring.WaitFull(at);
    return Uniform(PlanOf(at).block.work.q_tile) >= 0;
  }
  __device__ __forceinline__ int StaleKeys() const {
    return Uniform(Rows(q).before == 0 ? PlanOf(q).block.stale_keys : 0);
  }

  __device__ __forceinline__ bool First() const { return threadIdx.x % 128 == 0; }
  __device__ __forceinline__ std::int64_t& LastRepair() const {
    return storage.last_repair[4 * consumer + WarpOfGroup()];
  }

  // Where the operands of the next products lie, once a warp: found ahead of what they wait for.
  struct Operands {
    std::uint32_t q, k, v;
  };
  __device__ __forceinline__ Operands Locate(const Ring<Traits::kQStages>& at) const {
    return {Uniform(ptx::SharedAddress(storage.q[at.stage()][consumer])),
            Uniform(ptx::SharedAddress(storage.k[kv.stage()])),
            Uniform(ptx::SharedAddress(storage.v[kv.Before().stage()]))};
  }

  // S = Q K^T, asynchronous.
  __device__ __forceinline__ void ScoreProduct(const Operands& operands) {
    using QTile = typename Traits::QTile;
    using KTile = typename Traits::KTile;
    MultiplyTransposed<Traits::kType, QTile, KTile>(operands.q, operands.k, S);
  }

  // O += P V, asynchronous.
  __device__ __forceinline__ void ValueProduct(const Operands& operands, bool accumulate) {
    Multiply<Traits::kType, typename Traits::VTile>(P, operands.v, accumulate, O);
  }

  // Softcap and masks of tile j of the work at `at`.
  __device__ __forceinline__ void Scores(const Ring<Traits::kQStages>& at, const KeyTiles& tiles,
                                         int j) {
    if constexpr (Traits::kSoftcap) CapScores(p.base.score_factor, p.base.softcap_log2, S);
    if (tiles.NeedsMask(j)) [[unlikely]] {
      const Plan& plan = PlanOf(at);
      const int key = j * Traits::kTileKV;
      HideOutside<Traits::kTileKV>(S, plan.consumers[consumer], plan.block.keys, key);
    }
  }

  // V of the next tile, of these rows the first or not. In the first, rows past the last key can
  // hold anything: they become zeros, which P's zeros leave alone. Every consumer writes the same.
  __device__ __forceinline__ void WaitValues(bool first_tile) {
    using VTile = typename Traits::VTile;
    storage.v_ring.WaitFull(kv.Before());
    if (!(p.base.cu_seqlens_k || p.base.seqused_k) || !first_tile) return;
    const int stale_keys = StaleKeys();
    if (stale_keys == 0) [[likely]] return;
    ClearLastRows<VTile>(storage.v[kv.Before().stage()], stale_keys);
    ptx::FenceProxyAsync();
    group.Sync();
  }

  // Tiles of the block that none of these rows sees.
  __device__ __forceinline__ void Skip(int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      group.WaitTurn();
      group.PassTurn();
      storage.k_ring.WaitFull(kv);
      storage.v_ring.WaitFull(kv);
      __syncwarp();  // no lane gives back what another waits for
      storage.k_ring.Release(kv);
      storage.v_ring.Release(kv);
      kv.NextInWarp();
    }
  }

  // Where O is stored from Q's place, the storing thread gives it back late, when the copy engine
  // has read it.
  __device__ __forceinline__ void Settle() {
    if (!kStaged || q.count == 0) return;
    if (First()) {
      ptx::TmaStoreWaitRead<0>();
      ptx::MbarrierArrive(&storage.q_ring.empty[q.Before().stage()]);
    }
    __syncwarp();
  }

  __device__ __forceinline__ Softmax Fresh() const {
    return Softmax(Traits::kSoftcap ? 1.0f : p.base.score_factor);
  }

  // The next S, and O += P V of this tile, of the work's the first or not, which runs on under what
  // follows.
  __device__ __forceinline__ void Products(const Ring<Traits::kQStages>& at, bool first) {
    const Operands operands = Locate(at);
    storage.k_ring.WaitFull(kv);
    group.WaitTurn();
    ScoreProduct(operands);                // S of the next tile
    WaitValues(first);
    ValueProduct(operands, !first);        // O += P V of this one, under its softmax
    group.PassTurn();
    ptx::WgmmaWait<1>();
    ptx::WgmmaHold(S);
    storage.k_ring.Release(kv);
  }
  __device__ __forceinline__ void AwaitValues(const Softmax& softmax) {
    ptx::WgmmaAfter(softmax.row_sum[0] + softmax.row_sum[1]);
    ptx::WgmmaWait<0>();
    ptx::WgmmaHold(O);
    storage.v_ring.Release(kv.Before());
    kv.NextInWarp();
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
  const BlockPlan& plan = PlanOf(q).block;
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
  return {softmax.Inverse(0), softmax.Inverse(1)};
}

// O / l of these rows to slow memory.
template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Finalize(const Factors& factors) {
  using OTile = typename Traits::OTile;
  const BlockPlan& plan = PlanOf(q).block;
  const WorkItem work = plan.work;
  const int warp_row = BlockRow();
#pragma unroll
  for (int i = 0; i < kValues; ++i) O[i] *= i / 2 % 2 == 0 ? factors.row0 : factors.row1;
  if (MayRepair()) {
    const int row = work.q_tile * Traits::kTileQ + warp_row;
    const unsigned bad = RowsNotFinite(O);
    if (bad != 0) AddRepair(p.repairs, RepairNumber(plan), work, row, bad, LastRepair());
  }
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
    const int batch = p.base.cu_seqlens_q ? 0 : work.batch;
    if (First()) StoreTile<OTile>(tile, p.o, plan.q_row + 64 * consumer, work.head, batch);
  }
  __syncwarp();
  if (kStaged && WarpOfGroup() != 0) storage.q_ring.Release(q);
  __syncwarp();
}

// The tiles that these rows see, from the right, and those of each work that follows without a gap.
// The last one's end is left to be done.
template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Attend(Softmax& softmax) {
  KeyTiles tiles = Uniform(Rows(q).tiles);
  int j = tiles.end - 1;
  Skip(Uniform(Rows(q).before));
  const Operands operands = Locate(q);
  storage.k_ring.WaitFull(kv);
  group.WaitTurn();
  ScoreProduct(operands);                // S = Q K^T
  group.PassTurn();
  ptx::WgmmaWait<0>();
  ptx::WgmmaHold(S);
  storage.k_ring.Release(kv);
  kv.NextInWarp();
  if (!kStaged && j == tiles.begin) storage.q_ring.Release(q);
  Scores(q, tiles, j);
  softmax.Update(S);                     // m, P, l
  PackRows<Traits::kType>(S, P);
  for (;;) {
    for (--j; j >= tiles.begin; --j) {
      const bool first = j + 2 == tiles.end;
      Products(q, first);
      if (!kStaged && j == tiles.begin) storage.q_ring.Release(q);
      Scores(q, tiles, j);
      const bool moved = softmax.Update(S);  // m, P, l
      if (first) Settle();
      AwaitValues(softmax);
      if (moved) softmax.Rescale(O);         // O *= alpha
      PackRows<Traits::kType>(S, P);
    }
    if constexpr (!kStaged) break;
    // The first S of the next work under the last P V of this one.
    const bool first = j + 2 == tiles.end;
    if (first) Settle();
    Ring<Traits::kQStages> at = q;
    at.NextInWarp();
    storage.q_ring.WaitFull(at);
    if (Uniform(Rows(at).joins) == 0) break;
    Products(at, first);
    const Factors factors = Close(softmax);
    softmax = Fresh();
    tiles = Uniform(Rows(at).tiles);
    j = tiles.end - 1;
    Scores(at, tiles, j);
    softmax.Update(S);
    AwaitValues(softmax);
    PackRows<Traits::kType>(S, P);
    Finalize(factors);
    q = at;
  }
  WaitValues(j + 2 == tiles.end);
  ValueProduct(Locate(q), j + 2 != tiles.end);
  ptx::WgmmaWait<0>();
  ptx::WgmmaHold(O);
  storage.v_ring.Release(kv.Before());
  Skip(Uniform(Rows(q).after));
}

template <class Traits>
__device__ __forceinline__ void ForwardV3Consumer<Traits>::Run() {
  if (consumer == Traits::kConsumers - 1) group.PassTurn();
  if (LaneIndex() == 0) LastRepair() = -1;
  __syncwarp();
  for (; Take(q); q.NextInWarp()) {
    Softmax softmax = Fresh();
    if (Uniform(Rows(q).tiles.begin) < Uniform(Rows(q).tiles.end)) {
      Attend(softmax);
    } else {
      Settle();
      if (!kStaged) storage.q_ring.Release(q);
      Skip(Uniform(Rows(q).before));
#pragma unroll
      for (int i = 0; i < kValues; ++i) O[i] = 0.0f;
    }
    Finalize(Close(softmax));
  }
  if (First()) ptx::TmaStoreWaitRead<0>();
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
    if (threadIdx.x < 32) ForwardV3Producer<Traits>{params, storage, {}, {}}.Run();
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
  using Plain = ForwardV3Traits<kType, kConfig, false>;
  using Capped = ForwardV3Traits<kType, WithSoftcap(kConfig), true>;
  return params.base.softcap_log2 != 0.0f ? StartForwardV3<Capped>(params, blocks, stream)
                                          : StartForwardV3<Plain>(params, blocks, stream);
}

template <int kRow>
cudaError_t LaunchForwardV3(DType dtype, const ForwardV3Params& params, int blocks,
                            cudaStream_t stream) {
  constexpr ForwardV3Config kConfig = kForwardV3Configs[kRow];
  return dtype == DType::kBFloat16
             ? StartForwardV3<DType::kBFloat16, kConfig>(params, blocks, stream)
             : StartForwardV3<DType::kFloat16, kConfig>(params, blocks, stream);
}

#endif

}  // namespace flashwok::cuda
