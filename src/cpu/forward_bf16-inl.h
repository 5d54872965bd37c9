// The verbs of V3 for bfloat16: tiles stay narrow, as pairs along the depth of their product, and
// the products accumulate in float32. Q keeps its bits, so its scale goes into the scores.
// Per-target guard.
#if defined(FLASHWOK_CPU_FORWARD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_FORWARD_BF16_INL_H_
#undef FLASHWOK_CPU_FORWARD_BF16_INL_H_
#else
#define FLASHWOK_CPU_FORWARD_BF16_INL_H_
#endif

#include <bit>
#include <cstring>

#include "cpu/forward-inl.h"
#include "cpu/forward_v3.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

HWY_INLINE Bf16Pair* Pairs(float* tile) { return reinterpret_cast<Bf16Pair*>(tile); }
HWY_INLINE const Bf16Pair* Pairs(const float* tile) {
  return reinterpret_cast<const Bf16Pair*>(tile);
}

// Rows of n values, copied with zeros up to `padded`.
HWY_INLINE void CopyBf16Row(const void* source, std::int64_t n, std::int64_t padded, void* target) {
  std::memcpy(target, source, n * 2);
  std::memset(static_cast<char*>(target) + n * 2, 0, (padded - n) * 2);
}

// Two rows woven into one of pairs, n columns; a null row counts as zeros.
HWY_INLINE void WeaveRows(const std::uint16_t* even, const std::uint16_t* odd, std::int64_t n,
                          std::int64_t padded, Bf16Pair* target) {
  const U32 d;
  const hn::Rebind<std::uint16_t, F32> d16;
  std::int64_t c = 0;
  if (even != nullptr && odd != nullptr) {
    for (; c + kLanes <= n; c += kLanes) {
      const auto low = hn::PromoteTo(d, hn::LoadU(d16, even + c));
      const auto high = hn::PromoteTo(d, hn::LoadU(d16, odd + c));
      hn::Store(hn::Or(low, hn::ShiftLeft<16>(high)), d, target + c);
    }
  }
  for (; c < padded; ++c) {
    const Bf16Pair low = even != nullptr && c < n ? even[c] : 0;
    const Bf16Pair high = odd != nullptr && c < n ? odd[c] : 0;
    target[c] = low | high << 16;
  }
}

HWY_INLINE bool IsFiniteBf16(Bf16Pair half) { return (half & 0x7F80) != 0x7F80; }

HWY_INLINE bool AllFinitePairs(const Bf16Pair* tile, std::int64_t rows, std::int64_t cols) {
  bool finite = true;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const Bf16Pair pair = tile[r * kTileLd + c];
      finite = finite && IsFiniteBf16(pair) && IsFiniteBf16(pair >> 16);
    }
  }
  return finite;
}

// The tile with zeros for what is not finite.
HWY_INLINE void CopyFinitePairs(const Bf16Pair* tile, std::int64_t rows, std::int64_t cols,
                                Bf16Pair* finite) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      Bf16Pair pair = tile[r * kTileLd + c];
      if (!IsFiniteBf16(pair)) pair &= 0xFFFF0000u;
      if (!IsFiniteBf16(pair >> 16)) pair &= 0xFFFFu;
      finite[r * kTileLd + c] = pair;
    }
  }
}

// O += P V, of the values of V that are not finite and for the rows that see them: those with P = 0
// there keep their bits.
HWY_NOINLINE void AddNonFinite(std::int64_t rows, std::int64_t cols, std::int64_t depth,
                               const Bf16Pair* P, const Bf16Pair* V, float* O) {
  const auto half = [](Bf16Pair pair, std::int64_t k) {
    return k % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u;
  };
  for (std::int64_t k = 0; k < 2 * depth; ++k) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const Bf16Pair value = half(V[k / 2 * kTileLd + c], k);
      if (IsFiniteBf16(value >> 16)) continue;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float factor = std::bit_cast<float>(half(P[r * kTileLd + k / 2], k));
        if (factor != 0.0f) O[r * kTileLd + c] += factor * std::bit_cast<float>(value);
      }
    }
  }
}

class Bf16Verbs : public ForwardVerbs {
 public:
  static constexpr int kKeyBlock = 32;  // keys are the depth of P V

  Bf16Verbs(const Layout& layout, const Launch& launch, const Tracer& tracer, const WorktopV3& top)
      : ForwardVerbs(layout, launch, tracer, top),
        products_(*launch.bf16),
        depth_(RoundUp(layout.head_dim, 32) / 2),
        cols_(RoundUp(layout.head_dim_v, 16)),
        P_(Pairs(top.P)),
        finite_(Pairs(top.V_finite)) {
    products_.begin();
  }
  ~Bf16Verbs() { products_.end(); }
  Bf16Verbs(const Bf16Verbs&) = delete;
  Bf16Verbs& operator=(const Bf16Verbs&) = delete;

  KeyTile Keys(const QTile& tile, std::int64_t index) const {
    return MakeKeyTile(tile.sequence, index, launch_.tile_kv, kKeyBlock);
  }

  void LoadQ(const QTile& tile) const {
    const auto span = tracer_.Load(Role::kQ, tile.rows * layout_.head_dim * 2, Place(tile, -1));
    const Bf16Pair sign = QueryScale(layout_, tile) < 0.0f ? 0x80008000u : 0;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      Bf16Pair* row = Pairs(top_.Q) + r * kTileLd;
      CopyBf16Row(layout_.q.Row(tile.batch, tile.sequence.q_begin + tile.row_begin + r, tile.head),
                  layout_.head_dim, 2 * depth_, row);
      for (std::int64_t c = 0; c < depth_; ++c) row[c] ^= sign;
    }
  }

  // Keys [begin, end), multiples of 4, as columns of pairs.
  void LoadKeyColumns(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                      float* target) const {
    HWY_ALIGN float buffer[4 * kMaxTileCols];
    for (std::int64_t r = begin; r < end; r += 4) {
      for (std::int64_t k = 0; k < 4; ++k) {
        float* row = buffer + k * kMaxTileCols;
        if (r + k < keys.cols) {
          CopyBf16Row(Row(layout_.k, tile, keys, r + k), layout_.head_dim, 2 * depth_, row);
        } else {
          std::memset(row, 0, depth_ * sizeof(Bf16Pair));
        }
      }
      StoreTransposed4(buffer, kMaxTileCols, depth_, target + r);
    }
  }
  void LoadValueRows(const QTile& tile, const KeyTile& keys, std::int64_t begin, std::int64_t end,
                     float* target) const {
    const auto source = [&](std::int64_t r) {
      return r < keys.cols ? reinterpret_cast<const std::uint16_t*>(Row(layout_.v, tile, keys, r))
                           : nullptr;
    };
    for (std::int64_t r = begin; r < end; r += 2) {
      WeaveRows(source(r), source(r + 1), layout_.head_dim_v, cols_,
                Pairs(target) + r / 2 * kTileLd);
    }
  }

  void ScoreProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float* KT,
                    float* S) const {
    const auto span = tracer_.Product(Role::kS, 2 * rows.size() * keys.cols * layout_.head_dim,
                                      Place(tile, keys.index));
    products_.gemm(false, rows.size(), keys.padded, depth_, Pairs(top_.Q) + rows.begin * kTileLd,
                   Pairs(KT), S);
  }

  void Scores(const QTile& tile, const KeyTile& keys, const RowRange& rows, bool masked,
              float* S) const {
    if (!PlainScores(layout_)) {
      const float scale = std::abs(QueryScale(layout_, tile));
      for (std::int64_t r = 0; r < rows.size(); ++r) ScaleRow(S + r * kTileLd, keys.padded, scale);
    }
    ForwardVerbs::Scores(tile, keys, rows, masked, S);
  }

  void Softmax(const QTile& tile, const KeyTile& keys, const RowRange& rows, const RowState& state,
               bool masked, float* S) const {
    const float scale = PlainScores(layout_) ? std::abs(QueryScale(layout_, tile)) : 1.0f;
    SoftmaxOf(scale, tile, keys, rows, state, masked, S);
    products_.round(rows.size(), keys.padded, S, P_);
  }

  void ValueProduct(const QTile& tile, const KeyTile& keys, const RowRange& rows, const float*,
                    const float* V, bool masked, float* O) const {
    const auto span = tracer_.Product(Role::kO, 2 * rows.size() * keys.cols * layout_.head_dim_v,
                                      Place(tile, keys.index));
    float* target = O + rows.begin * kTileLd;
    const std::int64_t depth = keys.padded / 2;
    if (masked && !AllFinitePairs(Pairs(V), depth, cols_)) {
      CopyFinitePairs(Pairs(V), depth, cols_, finite_);
      products_.gemm(true, rows.size(), cols_, depth, P_, finite_, target);
      AddNonFinite(rows.size(), layout_.head_dim_v, depth, P_, Pairs(V), target);
    } else {
      products_.gemm(true, rows.size(), cols_, depth, P_, Pairs(V), target);
    }
  }

 private:
  const char* Row(const RowView& view, const QTile& tile, const KeyTile& keys,
                  std::int64_t r) const {
    return layout_.KeyRow(view, tile.batch, tile.sequence, keys.begin + r, tile.head_kv);
  }

  const Bf16Products& products_;
  const std::int64_t depth_;  // of Q K^T, in pairs
  const std::int64_t cols_;   // of O
  Bf16Pair* P_;
  Bf16Pair* finite_;
};

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
