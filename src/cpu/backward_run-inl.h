// How the backward workers share a problem: D and a zero dQ for every row, then one KV tile of one
// head of K and V at a time with all Q tiles that see it, then dQ in its dtype and the gradient of
// the bias. Per-target guard.
#if defined(FLASHWOK_CPU_BACKWARD_RUN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_BACKWARD_RUN_INL_H_
#undef FLASHWOK_CPU_BACKWARD_RUN_INL_H_
#else
#define FLASHWOK_CPU_BACKWARD_RUN_INL_H_
#endif

#include "cpu/backward-inl.h"
#include "cpu/backward_bias-inl.h"
#include "cpu/parallel_for.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// The Q tiles that visit one KV tile: of every head that shares its K and V, in ascending order.
class Visits {
 public:
  Visits(const Layout& layout, const Launch& launch, std::int64_t batch, std::int64_t head_kv,
         std::int64_t k_tile, const Tracer& tracer)
      : layout_(layout), launch_(launch), k_tile_(k_tile) {
    const QTiles tiles(layout, launch.tile_q);
    for (std::int64_t g = 0; g < layout.group; ++g) {
      const std::int64_t batch_head = batch * layout.num_heads + head_kv * layout.group + g;
      for (std::int64_t t = tiles.per_head() - 1; t >= 0; --t) {
        const QTile tile = tiles.At(batch_head * tiles.per_head() + t);
        if (tile.rows == 0) continue;
        if (Range(tile).Contains(k_tile)) {
          tiles_.push_back(tile);
        } else {
          tracer.Work(EventKind::kSkip, Role::kQ, ForwardVerbs::Place(tile, k_tile));
        }
      }
    }
  }

  auto begin() const { return tiles_.begin(); }
  auto end() const { return tiles_.end(); }
  bool Masked(const QTile& tile) const {
    return Range(tile).NeedsMask(k_tile_) || layout_.mask || layout_.bias;
  }
  // Runs `body` after the KV tiles before this one have had their turn at the Q tile.
  template <typename Body>
  void InTurn(const DQAccumulator& dq, const QTile& tile, const Body& body) const {
    dq.AwaitTurn(tile, k_tile_ - Range(tile).begin);
    body();
    dq.PassTurn(tile);
  }

 private:
  TileRange Range(const QTile& tile) const {
    return VisitedTiles(tile.sequence.mask, tile.row_begin, tile.row_begin + tile.rows,
                        launch_.tile_kv);
  }
  const Layout& layout_;
  const Launch& launch_;
  std::int64_t k_tile_;
  std::vector<QTile> tiles_;
};

HWY_INLINE void LoadD(const BackwardScratch& scratch, const Tracer& tracer, const QTile& tile,
                      const KeyTile& keys, const QStage& stage) {
  const auto span = tracer.Load(Role::kD, tile.rows * 4, ForwardVerbs::Place(tile, keys.index));
  std::copy_n(scratch.D + tile.batch_head * scratch.rows + tile.row_begin, tile.rows, stage.D);
}

// One pass over all Q tiles.
template <typename Body>
void ForQTiles(const BackwardCall& call, const Body& body) {
  const Launch& launch = call.launch;
  const QTiles tiles(call.layout, launch.tile_q);
  ParallelFor(launch.num_threads, tiles.count(), [&](int worker, std::int64_t index) {
    const QTile tile = tiles.At(index);
    if (tile.rows > 0) body(Tracer(launch.observer, worker, call.start), tile);
  });
}

// D = rowsum(dO * O) - dlse, once for every row; dQ = 0.
HWY_INLINE void Prepare(const BackwardCall& call, const BackwardScratch& scratch,
                        const DQAccumulator& dq, bool with_D) {
  const Layout& layout = call.layout;
  ForQTiles(call, [&](const Tracer& tracer, const QTile& tile) {
    const auto place = ForwardVerbs::Place(tile, -1);
    dq.Reset(tile);
    tracer.Store(Role::kDQ, tile.rows * layout.head_dim * 4, place);
    if (!with_D) return;
    const std::int64_t width = tile.rows * layout.head_dim_v;
    tracer.Load(Role::kO, width * ItemSize(call.o.dtype), place);
    tracer.Load(Role::kDO, width * ItemSize(call.dout.dtype), place);
    if (call.dlse) tracer.Load(Role::kDLse, tile.rows * 4, place);
    float* D = scratch.D + tile.batch_head * scratch.rows + tile.row_begin;
    for (std::int64_t r = 0; r < tile.rows; ++r) D[r] = RowDot(call, tile, r);
    tracer.Store(Role::kD, tile.rows * 4, place);
  });
}

// The float32 sums of a narrow dQ, to its dtype.
HWY_INLINE void FinishDQ(const BackwardCall& call, const DQAccumulator& dq) {
  if (dq.in_place()) return;
  const Layout& layout = call.layout;
  ForQTiles(call, [&](const Tracer& tracer, const QTile& tile) {
    const auto place = ForwardVerbs::Place(tile, -1);
    const std::int64_t width = tile.rows * layout.head_dim;
    tracer.Load(Role::kDQ, width * 4, place);
    tracer.Store(Role::kDQ, width * ItemSize(dq.output().dtype), place);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      char* out =
          dq.output().Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head);
      for (std::int64_t c = 0; c < layout.head_dim; ++c) {
        StoreFromFloat(out, dq.output().dtype, c, dq.Row(tile, r)[c]);
      }
    }
  });
}

// A QTile that stands for a KV tile's head where only batch and head matter.
HWY_INLINE QTile HeadOf(const Layout& layout, std::int64_t batch, std::int64_t head_kv) {
  QTile tile;
  tile.batch = batch;
  tile.head_kv = head_kv;
  tile.head = head_kv * layout.group;
  tile.batch_head = batch * layout.num_heads + tile.head;
  tile.index = -1;
  tile.sequence = layout.At(batch);
  return tile;
}

// dK and dV of the rows that hold no key of a sequence: past its key length, or past the last
// sequence.
HWY_INLINE void ZeroUnusedKeys(const BackwardCall& call, const Gradients& gradients) {
  const Layout& layout = call.layout;
  const Tracer tracer(call.launch.observer, 0, call.start);
  const bool varlen = layout.problem().cu_seqlens_k.present();
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    const Sequence sequence = layout.At(b);
    const std::int64_t begin = sequence.k_begin + sequence.seqlen_k;
    const std::int64_t end =
        varlen && b + 1 < layout.batch ? layout.At(b + 1).k_begin : layout.total_k;
    const auto zero = [&](Role role, const Tensor& gradient, std::int64_t h) {
      const RowView view = RowView::Make(gradient);
      const std::int64_t bytes = gradient.shape[gradient.rank - 1] * ItemSize(view.dtype);
      const auto span =
          tracer.Store(role, (end - begin) * bytes, ForwardVerbs::Place(HeadOf(layout, b, h), -1));
      for (std::int64_t row = begin; row < end; ++row) std::memset(view.Row(b, row, h), 0, bytes);
    };
    for (std::int64_t h = 0; begin < end && h < layout.num_heads_kv; ++h) {
      zero(Role::kDK, gradients.dk, h);
      zero(Role::kDV, gradients.dv, h);
    }
  }
}

// A backward call: what comes before the kernel's own passes, what they share, and what comes
// after.
class BackwardJob {
 public:
  // with_D: the kernel reads D beside its tiles instead of computing it there.
  BackwardJob(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
              const Launch& launch, bool with_D)
      : layout(problem),
        arena(launch.workspace),
        scratch(arena, layout, launch),
        call(layout, input, launch),
        dq(layout, scratch, gradients.dq),
        gradients_(gradients) {
    Prepare(call, scratch, dq, with_D);
    ZeroUnusedKeys(call, gradients);
  }
  void Finish() const {
    FinishDQ(call, dq);
    BiasGradient(call, scratch, gradients_);
  }

  std::int64_t heads_kv() const { return layout.batch * layout.num_heads_kv; }
  std::int64_t key_tiles() const { return CeilDiv(layout.max_seqlen_k, call.launch.tile_kv); }

  // One KV tile of head number `head` of K and V: both in, all visits, dK and dV out.
  template <typename Verbs, typename Body>
  void RunKeyTile(int worker, std::int64_t head, std::int64_t k_tile, const Body& body) const {
    const QTile place = HeadOf(layout, head / layout.num_heads_kv, head % layout.num_heads_kv);
    if (k_tile * call.launch.tile_kv >= place.sequence.seqlen_k) return;
    const Tracer tracer(call.launch.observer, worker, call.start);
    const BackwardWorktop& top = scratch.tops[worker];
    const KeyTile keys = MakeKeyTile(place.sequence, k_tile, call.launch.tile_kv, Verbs::kKeyBlock);
    const Verbs verbs(call, tracer, top);
    const Visits visits(layout, call.launch, place.batch, place.head_kv, k_tile, tracer);
    verbs.ZeroGradients(keys);
    if (visits.begin() != visits.end()) {
      verbs.LoadKV(place, keys);
      body(verbs, top, keys, visits);
    }
    verbs.StoreGradients(place, keys, RowView::Make(gradients_.dk), RowView::Make(gradients_.dv));
  }

  // Workers over batch x heads of K and V x KV tiles.
  template <typename Verbs, typename Body>
  void ForKeyTiles(const Body& body) const {
    ParallelFor(call.launch.num_threads, heads_kv() * key_tiles(),
                [&](int worker, std::int64_t index) {
                  RunKeyTile<Verbs>(worker, index / key_tiles(), index % key_tiles(), body);
                });
  }

  const Layout layout;
  Arena arena;  // still growing in a kernel that takes more
  const BackwardScratch scratch;
  const BackwardCall call;
  const DQAccumulator dq;

 private:
  const Gradients& gradients_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
