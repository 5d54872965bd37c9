// Tiles in shared memory as the copy engine writes them and wgmma reads them: blocks of one swizzle
// width, [cols / kBlock][rows][kBlock], 16 bytes of a row permuted by the row's number.
// (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout".)
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace flashwok::cuda {

// A tile of 16-bit elements. Its address is a multiple of 8 rows, kWidth * 8 bytes.
template <int kRows_, int kCols_>
struct SwizzledTile {
  static constexpr int kRows = kRows_;
  static constexpr int kCols = kCols_;
  static constexpr int kWidth = kCols % 64 == 0 ? 128 : 64;  // bytes of a row in a block
  static constexpr int kBlock = kWidth / 2;                  // its elements
  static constexpr int kBlocks = kCols / kBlock;
  static constexpr int kBlockBytes = kRows * kWidth;
  static constexpr int kBytes = kBlocks * kBlockBytes;
  static_assert(kCols % kBlock == 0 && kRows % 8 == 0);

  // Where element (row, col) lies.
  FLASHWOK_HOST_DEVICE static constexpr std::uint32_t Offset(int row, int col) {
    const auto linear = static_cast<std::uint32_t>(col / kBlock * kBlockBytes + row * kWidth +
                                                   col % kBlock * 2);
    return linear ^ ((linear >> 7 & (kWidth / 16 - 1)) << 4);
  }
};

// The 64 bits by which wgmma finds an operand in shared memory.
struct Descriptor {
  // Rows contiguous along the inner dimension of the product: groups of 8 rows, one after another.
  // Of tile `n` of those that follow one another from the address.
  template <class Tile>
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t InnerMajor(std::uint32_t address,
                                                                 std::uint32_t n = 0) {
    return Make<Tile>(address, n, 16);
  }
  // Rows run along the inner dimension of the product; the columns' blocks follow one another.
  template <class Tile>
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t OuterMajor(std::uint32_t address,
                                                                 std::uint32_t n = 0) {
    return Make<Tile>(address, n, Tile::kBlockBytes);
  }
  // The operand that starts `bytes` further.
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t Advance(std::uint64_t descriptor, int bytes) {
    return descriptor + static_cast<std::uint64_t>(bytes >> 4);
  }

 private:
  // An address of shared memory has 18 bits. All that varies is in the low half.
  template <class Tile>
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t Make(std::uint32_t address, std::uint32_t n,
                                                           std::uint32_t leading) {
    constexpr std::uint32_t kMode = Tile::kWidth == 128 ? 1 : 2;
    constexpr std::uint32_t kHigh = kMode << 30 | 8 * Tile::kWidth >> 4;
    const std::uint32_t low = (address >> 4) + (leading >> 4 << 16) + n * (Tile::kBytes >> 4);
    return std::uint64_t{kHigh} << 32 | low;
  }
};

}  // namespace flashwok::cuda
