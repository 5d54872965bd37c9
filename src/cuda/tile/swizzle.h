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
  template <class Tile>
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t InnerMajor(std::uint32_t address) {
    return Make(address, 16, 8 * Tile::kWidth, Tile::kWidth);
  }
  // Rows run along the inner dimension of the product; the columns' blocks follow one another.
  template <class Tile>
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t OuterMajor(std::uint32_t address) {
    return Make(address, Tile::kBlockBytes, 8 * Tile::kWidth, Tile::kWidth);
  }
  // The operand that starts `bytes` further.
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t Advance(std::uint64_t descriptor, int bytes) {
    return descriptor + static_cast<std::uint64_t>(bytes >> 4);
  }

 private:
  FLASHWOK_HOST_DEVICE static constexpr std::uint64_t Make(std::uint32_t address, int leading,
                                                           int stride, int width) {
    const std::uint64_t mode = width == 128 ? 1 : 2;
    return (address >> 4 & 0x3FFF) | static_cast<std::uint64_t>(leading >> 4) << 16 |
           static_cast<std::uint64_t>(stride >> 4) << 32 | mode << 62;
  }
};

}  // namespace flashwok::cuda
