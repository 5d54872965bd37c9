// bfloat16 products by AMX: tiles of 16 rows of 64 bytes, two by two of them accumulating at once.
// Only this file's own code may be compiled for it: no header with inline functions comes in.
#include "cpu/bf16_products.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/tile_ld.h"

namespace flashwok::cpu {
namespace {

constexpr int kTile = 16;  // rows; also pairs or floats of a row
constexpr int kStride = kTileLd * 4;

// The tile registers, which the intrinsics want as literals: 0 to 3 hold C (upper left, upper
// right, lower left, lower right), 4 and 5 A (upper, lower), 6 and 7 B (left, right).
constexpr int kTiles = 8;

struct alignas(64) Config {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  // All tiles whole, but those of the upper rows of A and C, which have `upper` rows.
  constexpr explicit Config(int upper) {
    for (int tile = 0; tile < kTiles; ++tile) {
      row_bytes[tile] = 64;
      rows[tile] = kTile;
    }
    rows[0] = rows[1] = rows[4] = static_cast<std::uint8_t>(upper);
  }
};

// By the number of upper rows. In static memory: the intrinsic hides from the compiler that all of
// it is read.
constexpr Config kConfigs[] = {Config(1),  Config(1),  Config(2),  Config(3),  Config(4),
                               Config(5),  Config(6),  Config(7),  Config(8),  Config(9),
                               Config(10), Config(11), Config(12), Config(13), Config(14),
                               Config(15), Config(16)};

void Configure(std::int64_t upper) { _tile_loadconfig(&kConfigs[upper]); }

void Begin() { Configure(kTile); }
void End() { _tile_release(); }

// kRows x kCols tiles of C, each 1 or 2.
template <int kRows, int kCols>
void Block(bool add, std::int64_t depth, const Bf16Pair* a, const Bf16Pair* b, float* c) {
  constexpr int kLower = kTile * kTileLd;
  if (add) {
    _tile_loadd(0, c, kStride);
    if constexpr (kCols > 1) _tile_loadd(1, c + kTile, kStride);
    if constexpr (kRows > 1) _tile_loadd(2, c + kLower, kStride);
    if constexpr (kRows > 1 && kCols > 1) _tile_loadd(3, c + kLower + kTile, kStride);
  } else {
    _tile_zero(0);
    if constexpr (kCols > 1) _tile_zero(1);
    if constexpr (kRows > 1) _tile_zero(2);
    if constexpr (kRows > 1 && kCols > 1) _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += kTile) {
    _tile_loadd(4, a + k, kStride);
    _tile_loadd(6, b + k * kTileLd, kStride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kCols > 1) {
      _tile_loadd(7, b + k * kTileLd + kTile, kStride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, a + kLower + k, kStride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRows > 1 && kCols > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, kStride);
  if constexpr (kCols > 1) _tile_stored(1, c + kTile, kStride);
  if constexpr (kRows > 1) _tile_stored(2, c + kLower, kStride);
  if constexpr (kRows > 1 && kCols > 1) _tile_stored(3, c + kLower + kTile, kStride);
}

// All rows of one panel of columns, whose part of B stays near.
template <int kCols>
void Panel(bool add, std::int64_t rows, std::int64_t depth, const Bf16Pair* a, const Bf16Pair* b,
           float* c) {
  std::int64_t i = 0;
  for (; i + 2 * kTile <= rows; i += 2 * kTile) {
    Block<2, kCols>(add, depth, a + i * kTileLd, b, c + i * kTileLd);
  }
  if (i + kTile <= rows) {
    Block<1, kCols>(add, depth, a + i * kTileLd, b, c + i * kTileLd);
    i += kTile;
  }
  if (i == rows) return;
  Configure(rows - i);
  Block<1, kCols>(add, depth, a + i * kTileLd, b, c + i * kTileLd);
  Configure(kTile);
}

void Gemm(bool add, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Bf16Pair* a,
          const Bf16Pair* b, float* c) {
  std::int64_t n = 0;
  for (; n + 2 * kTile <= cols; n += 2 * kTile) Panel<2>(add, rows, depth, a, b + n, c + n);
  if (n < cols) Panel<1>(add, rows, depth, a, b + n, c + n);
}

// The processor has the instructions and the kernel lets this process use the registers.
bool Allowed() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const Bf16Products* AmxProducts() {
  static const Bf16Products* const products = []() -> const Bf16Products* {
    const Bf16Products* vectors = Avx512Bf16Products();
    if (vectors == nullptr || !Allowed()) return nullptr;
    static const Bf16Products amx{Begin, End, Gemm, vectors->round, vectors->weave};
    return &amx;
  }();
  return products;
}

}  // namespace flashwok::cpu

#else

namespace flashwok::cpu {
const Bf16Products* AmxProducts() { return nullptr; }
}  // namespace flashwok::cpu

#endif
