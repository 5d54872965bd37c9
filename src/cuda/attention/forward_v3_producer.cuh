// Forward V3's shared memory, and the warp that fills it.
#pragma once

#include "cuda/attention/time_stamps.cuh"
#include "cuda/attention/work_plan.cuh"
#include "cuda/config/forward_v3_traits.h"

namespace flashwok::cuda {

template <class Traits>
struct alignas(1024) ForwardV3Storage {
  unsigned char q[Traits::kQStages][Traits::kConsumers][Traits::QTile::kBytes];
  unsigned char k[Traits::kStages][Traits::KTile::kBytes];
  unsigned char v[Traits::kStages][Traits::VTile::kBytes];
  RingBarriers<Traits::kQStages> q_ring;
  RingBarriers<Traits::kStages> k_ring, v_ring;
  WorkPlan<Traits::kConsumers> plans[4];  // the next work's, this one's, and one of a slower warp
  std::int64_t last_repair[Traits::kConsumerWarps];  // each warp's, or -1

  __device__ __forceinline__ WorkPlan<Traits::kConsumers>& Plan(const Ring<Traits::kQStages>& at) {
    return plans[at.count % 4];
  }
};

// --- Producer: one warp, whose first lane talks to the copy engine. -------------------------------

template <class Traits>
struct ForwardV3Producer {
  static constexpr int kManyTiles = 16;

  __device__ __forceinline__ ForwardV3Producer(const ForwardV3Params& params,
                                               ForwardV3Storage<Traits>& shared)
      : p(params), storage(shared), stamps(params.stamps) {}

  const ForwardV3Params& p;
  ForwardV3Storage<Traits>& storage;
  Ring<Traits::kQStages> q;
  Ring<Traits::kStages> kv;
  StampsOf<Traits> stamps;

  __device__ __forceinline__ bool Talks() const { return threadIdx.x == 0; }
  __device__ __forceinline__ int Batch(const WorkItem& work) const {
    return p.base.cu_seqlens_q ? 0 : work.batch;
  }

  // Of the work whose Q is loaded next; and how the one with this number gets its own.
  __device__ __forceinline__ BlockPlan& Plan() const { return storage.Plan(q).block; }
  __device__ __forceinline__ void PlanNext(WorkSource& source, std::uint32_t number) {
    const WorkItem work = number == 0 ? source.First() : source.Next();
    MakePlan(p, work, source.index(), Traits::kTileKV,
             number == 0 ? nullptr : &storage.plans[(number - 1) % 4], storage.plans[number % 4]);
    stamps.Done(V3Step::kNextWork);
  }

  // A work's Q, or word that there is no more.
  __device__ __forceinline__ void LoadQueries() {
    storage.q_ring.WaitEmpty(q);
    __syncwarp();  // no lane waits for a phase that the loads may end
    stamps.Done(V3Step::kPlaceQ);
    if (Talks()) {
      ptx::Mbarrier& full = storage.q_ring.full[q.stage()];
      const BlockPlan& plan = Plan();
      if (plan.work.valid()) {
        ptx::MbarrierArriveExpect(&full, Traits::kConsumers * Traits::QTile::kBytes);
#pragma unroll 1
        for (int c = 0; c < Traits::kConsumers; ++c) {
          LoadTile<typename Traits::QTile>(storage.q[q.stage()][c], p.q, full, plan.q_row + 64 * c,
                                           plan.work.head, Batch(plan.work));
        }
        stamps.Done(V3Step::kLoadQ);
      } else {
        ptx::MbarrierArrive(&full);
      }
    }
    __syncwarp();
    q.Next();
  }

  // A stage of K or V, tile j.
  template <class Tile, V3Step kPlace, V3Step kLoad>
  __device__ __forceinline__ void Load(RingBarriers<Traits::kStages>& ring,
                                       unsigned char (&stages)[Traits::kStages][Tile::kBytes],
                                       const ptx::TensorMap& map, int j, int row, int head,
                                       int batch) {
    ring.WaitEmpty(kv);
    __syncwarp();
    stamps.Done(kPlace, j);
    if (Talks()) {
      ptx::Mbarrier& full = ring.full[kv.stage()];
      ptx::MbarrierArriveExpect(&full, Tile::kBytes);
      LoadTile<Tile>(stages[kv.stage()], map, full, row, head, batch);
      stamps.Done(kLoad, j);
    }
    __syncwarp();
  }

  // K and V of each work from the right. The first K goes ahead of Q, whose place may be free late.
  // The next work is drawn when the stages are under way, for that takes a while; where there are
  // many tiles, when all are, or blocks with much to do would keep work from the others.
  __device__ __forceinline__ void Run() {
    WorkSource source(p);
    std::uint32_t planned = 0;
    PlanNext(source, planned++);
    while (Plan().work.valid()) {
      stamps.Begin(Plan().work);
      const int head = Plan().work.head / static_cast<int>(p.base.group);
      const int batch = Batch(Plan().work);
      const int tiles = Plan().tiles;
      int row = Plan().k_end;
      const int end = Plan().end;
      if (tiles == 0) LoadQueries();
      const int draw_at = tiles < Traits::kStages || tiles > kManyTiles ? tiles : Traits::kStages;
#pragma unroll 1
      for (int n = 1; n <= tiles; ++n) {
        row -= Traits::kTileKV;
        Load<typename Traits::KTile, V3Step::kPlaceK, V3Step::kLoadK>(
            storage.k_ring, storage.k, p.k, end - n, row, head, batch);
        if (n == 1) LoadQueries();
        Load<typename Traits::VTile, V3Step::kPlaceV, V3Step::kLoadV>(
            storage.v_ring, storage.v, p.v, end - n, row, head, batch);
        kv.Next();
        if (n == draw_at) PlanNext(source, planned++);
      }
      if (tiles == 0) PlanNext(source, planned++);
    }
    stamps.Begin(Plan().work);
    LoadQueries();
  }
};

}  // namespace flashwok::cuda
