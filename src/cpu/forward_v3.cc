// Flash Attention V3 (Shah et al. 2024) as a CPU can run it. Against V2:
//   - an assembly line of two stages: while one pair of K and V tiles is computed with, the next
//     pair is fetched and packed in small steps between the products, so that the loads overlap
//     them;
//   - the consumers are blocks of rows of the Q tile, small enough that their scores stay near and
//     that little is computed of what a causal mask hides;
//   - products of narrow operands with float32 accumulation: bfloat16 by the instructions made for
//     it (AMX, AVX512_BF16); float8 is widened on the way in, and its scales are applied to the
//     scores and to O.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_v3.cc"
#include <hwy/foreach_target.h>
// Highway's per-target includes follow.
#include "cpu/forward-inl.h"
#include "cpu/forward_bf16-inl.h"
#include "cpu/forward_v3.h"
#include "cpu/kernels.h"
#include "cpu/parallel_for.h"
#include "cpu/split_kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// Fetches one KV tile into a stage, a slice at a time.
template <typename Verbs>
class Producer {
 public:
  Producer(const Verbs& verbs, const Layout& layout, const Tracer& tracer, const QTile& tile,
           std::int64_t steps)
      : verbs_(verbs), layout_(layout), tracer_(tracer), tile_(tile), steps_(steps) {}

  void Begin(const KeyTile& keys, const StageV3& stage, int stage_index) {
    keys_ = keys;
    stage_ = stage;
    stage_index_ = stage_index;
    end_ = 0;
    active_ = true;
  }
  bool active() const { return active_; }

  // One slice of `steps`.
  void Step() {
    if (!active_) return;
    Fetch(std::min(keys_.padded, end_ + RoundUp(CeilDiv(keys_.padded, steps_), kSlice)));
  }
  void Finish() {
    if (active_) Fetch(keys_.padded);
  }

 private:
  static constexpr std::int64_t kSlice = 16;  // keys: whole vectors, and pairs, on every target

  // Keys up to `end`.
  void Fetch(std::int64_t end) {
    Load(Role::kK, end_, end, layout_.head_dim * ItemSize(layout_.k.dtype),
         [&] { verbs_.LoadKeyColumns(tile_, keys_, end_, end, stage_.KT); });
    Load(Role::kV, end_, end, layout_.head_dim_v * ItemSize(layout_.v.dtype),
         [&] { verbs_.LoadValueRows(tile_, keys_, end_, end, stage_.V); });
    end_ = end;
    active_ = end < keys_.padded;
  }

  template <typename Body>
  void Load(Role role, std::int64_t begin, std::int64_t end, std::int64_t row_bytes,
            const Body& body) const {
    const std::int64_t keys = std::min(end, keys_.cols) - std::min(begin, keys_.cols);
    auto place = Verbs::Place(tile_, keys_.index);
    place.stage = stage_index_;
    const auto span = tracer_.Load(role, keys * row_bytes, place);
    body();
  }

  const Verbs& verbs_;
  const Layout& layout_;
  const Tracer& tracer_;
  const QTile& tile_;
  std::int64_t steps_;
  KeyTile keys_;
  StageV3 stage_{};
  int stage_index_ = 0;
  std::int64_t end_ = 0;  // keys fetched so far
  bool active_ = false;
};

struct ChunkV3 {
  const Layout& layout;
  const Launch& launch;

  template <typename Verbs>
  void operator()(const Verbs& verbs, const WorktopV3& top, const QTile& tile,
                  const TileRange& range, std::int64_t begin, std::int64_t end,
                  const RowState& state, float* O) const {
    const std::int64_t block = BlockRows(launch);
    ResetState(state, tile.rows);
    ZeroTile(O, tile.rows, layout.head_dim_v);
    Producer producer(verbs, layout, verbs.tracer(), tile, CeilDiv(tile.rows, block));
    producer.Begin(verbs.Keys(tile, begin), top.stages[0], 0);
    producer.Finish();
    for (std::int64_t j = begin; j < end; ++j) {
      const int stage = static_cast<int>((j - begin) % 2);
      const KeyTile keys = verbs.Keys(tile, j);
      if (j + 1 < end) {
        producer.Begin(verbs.Keys(tile, j + 1), top.stages[1 - stage], 1 - stage);
      }
      const bool clean = !verbs.Masked(range, j) || verbs.Clean(keys, top.stages[stage].V);
      verbs.ForStrips(tile, keys, block, [&](const RowRange& rows, const KeyTile& seen) {
        Consume(verbs, tile, seen, top.stages[stage], rows, clean, state, top.S, O);
        producer.Step();
      });
      producer.Finish();
    }
  }

  template <typename Verbs>
  void Consume(const Verbs& verbs, const QTile& tile, const KeyTile& keys, const StageV3& stage,
               const RowRange& rows, bool clean, const RowState& state, float* S, float* O) const {
    const bool masked = verbs.Masked(verbs.Range(tile, rows), keys.index);
    verbs.ScoreProduct(tile, keys, rows, stage.KT, S);           // S = Q K^T
    verbs.Scores(tile, keys, rows, masked, S);                   // mask, bias
    verbs.Softmax(tile, keys, rows, state, masked, S);           // m, P, l
    verbs.RescaleO(tile, keys, rows, state, O);                  // O *= alpha
    verbs.ValueProduct(tile, keys, rows, S, stage.V, clean, O);  // O += P V
  }
};

void ForwardV3(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  const Layout layout(problem);
  const ChunkV3 chunk{layout, launch};
  if (launch.bf16 != nullptr) {
    RunSplitKV<Bf16Verbs, WorktopV3>(layout, output, launch, chunk);
  } else {
    RunSplitKV<ForwardVerbs, WorktopV3>(layout, output, launch, chunk);
  }
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashwok::cpu {

HWY_EXPORT(ForwardV3);

void ForwardV3(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  HWY_DYNAMIC_DISPATCH(ForwardV3)(problem, output, launch);
}

std::size_t ForwardV3Bytes(const Problem& problem, const Launch& launch) {
  return SplitKVBytes<WorktopV3>(Layout(problem), launch);
}

void ForwardV3Amx(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  ForwardV3(problem, output, With(AmxProducts(), launch));
}

void ForwardV3Avx512Bf16(const Problem& problem, const ForwardOutput& output,
                         const Launch& launch) {
  ForwardV3(problem, output, With(Avx512Bf16Products(), launch));
}

std::size_t ForwardV3Bf16Bytes(const Problem& problem, const Launch& launch) {
  return ForwardV3Bytes(problem, With(Avx512Bf16Products(), launch));
}

}  // namespace flashwok::cpu
#endif
