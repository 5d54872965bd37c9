// A tile of 16-bit elements in shared memory. The swizzle is a property of the type: a row's
// 16-byte chunks are permuted (XOR with the row) among the 8, or 4, that share 128 or 64 bytes, so
// that eight chunks side by side in a row, which a copy writes, and eight below each other in a
// column, which ldmatrix reads, both lie in all 32 banks.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace flashwok::cuda {

template <int kTileRows, int kTileCols>
struct SharedTile {  // [kTileRows, kTileCols]
  static constexpr int kRows = kTileRows;
  static constexpr int kCols = kTileCols;
  static constexpr int kChunks = kCols / 8;               // 16-byte chunks of a row
  static constexpr int kSpan = kChunks % 8 == 0 ? 8 : 4;  // chunks that change places
  static constexpr int kRowBytes = kCols * 2;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kChunks % 4 == 0 && kRows % 16 == 0);

  std::uint32_t address;  // a multiple of 128

  // What the chunks of a row are XORed with; the same for rows 8 apart. A row of an odd number of
  // 64 bytes begins in the other half of the banks than its neighbours.
  FLASHWOK_HOST_DEVICE static constexpr int Key(int row) {
    return kSpan == 8 ? row & 7 : row >> 1 & 3;
  }
  FLASHWOK_HOST_DEVICE static constexpr std::uint32_t Offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ Key(row)) * 16);
  }
  FLASHWOK_HOST_DEVICE constexpr std::uint32_t At(int row, int chunk) const {
    return address + Offset(row, chunk);
  }
};

}  // namespace flashwok::cuda
