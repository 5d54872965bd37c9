// Tiles of bfloat16 pairs: brought to the worktop as operands of a product, and that product.
// Per-target guard.
#if defined(FLASHWOK_CPU_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHWOK_CPU_BF16_INL_H_
#undef FLASHWOK_CPU_BF16_INL_H_
#else
#define FLASHWOK_CPU_BF16_INL_H_
#endif

#include <cstring>

#include "common/dtype.h"
#include "cpu/bf16_products.h"
#include "cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashwok::cpu::HWY_NAMESPACE {

// A product's depth in pairs, and its columns, are whole multiples of this.
inline constexpr std::int64_t kBf16Block = 16;

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

// C += A B, of the values of B that are not finite and for the rows that see them: those with A = 0
// there keep their bits.
inline HWY_NOINLINE void AddNonFinite(std::int64_t rows, std::int64_t cols, std::int64_t depth,
                                      const Bf16Pair* A, const Bf16Pair* B, float* C) {
  const auto half = [](Bf16Pair pair, std::int64_t k) {
    return k % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u;
  };
  for (std::int64_t k = 0; k < 2 * depth; ++k) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const Bf16Pair value = half(B[k / 2 * kTileLd + c], k);
      if (IsFiniteBf16(value >> 16)) continue;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float factor = BitCast<float>(half(A[r * kTileLd + k / 2], k));
        if (factor != 0.0f) C[r * kTileLd + c] += factor * BitCast<float>(value);
      }
    }
  }
}

// Rows [begin, end) as pairs along the row, `depth` of them; sign: flips each value's.
template <typename Source>
HWY_INLINE void LoadPairRows(const Source& source, std::int64_t begin, std::int64_t end,
                             std::int64_t n, std::int64_t depth, bool negate, Bf16Pair* tile) {
  const Bf16Pair sign = negate ? 0x80008000u : 0;
  for (std::int64_t r = begin; r < end; ++r) {
    Bf16Pair* row = tile + r * kTileLd;
    CopyBf16Row(source(r), n, 2 * depth, row);
    for (std::int64_t c = 0; c < depth; ++c) row[c] ^= sign;
  }
}

// The same rows as columns [begin, end), multiples of kLanes; rows from `rows` on become zero.
template <typename Source>
HWY_INLINE void LoadPairColumns(const Source& source, std::int64_t begin, std::int64_t end,
                                std::int64_t rows, std::int64_t n, std::int64_t depth,
                                Bf16Pair* tile) {
  HWY_ALIGN float buffer[kLanes * kMaxTileCols];
  for (std::int64_t r = begin; r < end; r += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) {
      float* row = buffer + k * kMaxTileCols;
      if (r + k < rows) {
        CopyBf16Row(source(r + k), n, 2 * depth, row);
      } else {
        std::memset(row, 0, depth * sizeof(Bf16Pair));
      }
    }
    StoreTransposed(buffer, kMaxTileCols, depth, reinterpret_cast<float*>(tile) + r);
  }
}

// Rows [begin, end), even numbers, woven two by two; rows from `rows` on count as zero.
template <typename Source>
HWY_INLINE void LoadWovenRows(const Source& source, std::int64_t begin, std::int64_t end,
                              std::int64_t rows, std::int64_t n, std::int64_t cols,
                              Bf16Pair* tile) {
  const auto row = [&](std::int64_t r) {
    return r < rows ? reinterpret_cast<const std::uint16_t*>(source(r)) : nullptr;
  };
  for (std::int64_t r = begin; r < end; r += 2) {
    WeaveRows(row(r), row(r + 1), n, cols, tile + r / 2 * kTileLd);
  }
}

// C (+)= A B. Where A is zero, what is not finite in B counts as nothing, unless told that B is
// `clean`; `finite` is room for a tile.
HWY_INLINE void GemmBf16(const Bf16Products& products, Add add, bool clean, std::int64_t rows,
                         std::int64_t cols, std::int64_t depth, const Bf16Pair* A,
                         const Bf16Pair* B, Bf16Pair* finite, float* C) {
  if (clean || AllFinitePairs(B, depth, cols)) {
    products.gemm(add == Add::kYes, rows, cols, depth, A, B, C);
  } else {
    CopyFinitePairs(B, depth, cols, finite);
    products.gemm(add == Add::kYes, rows, cols, depth, A, finite, C);
    AddNonFinite(rows, cols, depth, A, B, C);
  }
}

}  // namespace flashwok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
