// From global memory to a tile, by kThreads threads of a block: past the registers in chunks of 16
// bytes, or element by element where rows are not aligned to 16 bytes. What lies past the given
// rows and columns becomes zero and is not read.
#pragma once

#include <cstdint>

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashwok::cuda {

template <class Tile, int kThreads>
class TileCopy {
 public:
  // By the threads from number `first` on.
  __device__ __forceinline__ explicit TileCopy(int first = 0) {
    const auto thread = static_cast<unsigned>(ptx::Here(static_cast<int>(threadIdx.x) - first));
    row_ = static_cast<int>(thread / Tile::kSpan);
    chunk_ = static_cast<int>(thread % Tile::kSpan);
    offset_ = Tile::Offset(row_, chunk_);
  }

  // Rows `stride` bytes apart, from row `begin` of those that start at `base`. kAllOrNone: `rows`
  // is all rows or 0.
  template <bool kAllOrNone = false>
  __device__ __forceinline__ void Strided(const Tile& tile, int rows, int cols, const char* base,
                                          unsigned begin, std::int64_t stride) const {
    const char* source = base + (begin + static_cast<unsigned>(row_)) * stride;
    ForEachRow(tile, [&](int row, std::uint32_t address) {
      Row(address, kAllOrNone ? rows > 0 : row < rows, cols, source);
      source += kStep * stride;
    });
  }

  // source(row) is the address of a row; rows from `rows` on are only asked for their address.
  template <class Source>
  __device__ __forceinline__ void Chunks(const Tile& tile, int rows, int cols,
                                         const Source& source) const {
    ForEachRow(
        tile, [&](int row, std::uint32_t address) { Row(address, row < rows, cols, source(row)); });
  }

  template <class Source>
  __device__ __forceinline__ void Elements(const Tile& tile, int rows, int cols,
                                           const Source& source) const {
    ForEachRow(tile, [&](int row, std::uint32_t address) {
      const auto* first = reinterpret_cast<const std::uint16_t*>(source(row)) + chunk_ * 8;
#pragma unroll 1
      for (int chunk = 0; chunk < Tile::kChunks; chunk += Tile::kSpan) {
        const int left = row < rows ? cols - (chunk_ + chunk) * 8 : 0;
        std::uint32_t pairs[4] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < left) pairs[i / 2] |= std::uint32_t{first[chunk * 8 + i]} << i % 2 * 16;
        }
        ptx::StoreShared(address + static_cast<std::uint32_t>(chunk * 16),
                         uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
      }
    });
  }

 private:
  __device__ __forceinline__ void Row(std::uint32_t address, bool valid, int cols,
                                      const char* source) const {
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += Tile::kSpan) {
      ptx::CopyAsync16(address + static_cast<std::uint32_t>(chunk * 16),
                       source + (chunk_ + chunk) * 16, valid && (chunk_ + chunk) * 8 < cols);
    }
  }

  // A pass takes kStep rows: where they are a multiple of 8, the swizzle of a thread is one constant.
  static constexpr int kStep = kThreads / Tile::kSpan;
  static_assert(Tile::kRows % kStep == 0);

  template <class Visit>
  __device__ __forceinline__ void ForEachRow(const Tile& tile, const Visit& visit) const {
#pragma unroll
    for (int row = 0; row < Tile::kRows; row += kStep) {
      visit(row_ + row, kStep % 8 == 0 ? tile.address + offset_ +
                                             static_cast<std::uint32_t>(row * Tile::kRowBytes)
                                       : tile.At(row_ + row, chunk_));
    }
  }

  int row_, chunk_;
  std::uint32_t offset_;
};

}  // namespace flashwok::cuda
