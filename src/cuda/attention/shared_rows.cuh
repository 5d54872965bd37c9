// Rows of a Q tile that two warps own together: each has the scores of half of the keys and half of
// O's columns, so that a fragment of K or V serves more rows than the registers hold of O. They
// exchange P, and what they must agree on, through shared memory.
#pragma once

#include <cstdint>

#include "cuda/attention/online_softmax.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/shared_address.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashwok::cuda {

// Which part of its rows' keys and columns a warp has.
template <int kShare>
__device__ __forceinline__ int WarpPart() {
  return kShare == 1 ? 0 : WarpIndex() % kShare;
}
template <int kShare>
__device__ __forceinline__ int WarpGroup() {
  return WarpIndex() / kShare;
}

// The columns of O that a warp has, in blocks of 8: of each 64 columns its part.
template <int kShare>
struct PartColumns {
  static constexpr int kSpan = 8 / kShare;
  __device__ __forceinline__ static int Block(int n) {
    return kShare == 1 ? n : n / kSpan * 8 + WarpPart<kShare>() * kSpan + n % kSpan;
  }
};

// A reader of V's columns of this warp's part, in blocks of 16.
template <int kShare, class Reader>
struct PartReader {
  Reader reader;
  __device__ __forceinline__ explicit PartReader(const Reader& whole)
      : reader(whole.From(WarpPart<kShare>() * 4 / kShare)) {}
  __device__ __forceinline__ std::uint32_t At(int row, int col) const {
    constexpr int kSpan = 4 / kShare;
    return reader.At(row, kShare == 1 ? col : col / kSpan * 4 + col % kSpan);
  }
};

// How two warps with the same kRows rows agree on m and l, and exchange P. `rows`: of the thread
// block's tile, [2][rows]; `grown`: [kTurns][warps]; of P, too, there are kTurns buffers.
template <class TileP, int kRows, int kKeys, int kTurns>
class RowsInCommon {
 public:
  static constexpr int kBlocks = kRows / 16;

  __device__ __forceinline__ RowsInCommon(unsigned char* P, float* rows, bool* grown)
      : tile_{ptx::SharedAddress(P)}, rows_(rows), grown_(grown) {}

  // Until both warps are here.
  __device__ __forceinline__ static void Sync() { ptx::BarrierSync(1 + WarpGroup<2>(), 64); }

  // For the other warp: P of this one's keys, and whether it found a row to raise.
  template <int kPairs>
  __device__ __forceinline__ void Offer(const std::uint32_t (&P)[kBlocks][kPairs], bool grown,
                                        int turn) const {
    const std::uint32_t address = tile_.address + Buffer(turn);
    const TileP tile{address};
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int row = WarpGroup<2>() * kRows + 16 * m + FragmentRow() + i % 2 * 8;
        ptx::StoreShared(tile.At(row, WarpPart<2>() * (kKeys / 8) + i / 2) +
                             static_cast<std::uint32_t>(2 * FragmentCol()),
                         P[m][i]);
      }
    }
    if (LaneIndex() == 0) grown_[turn % kTurns * kMaxWarps + WarpIndex()] = grown;
  }

  __device__ __forceinline__ bool Grown(int turn) const {
    const bool* pair = grown_ + turn % kTurns * kMaxWarps + WarpGroup<2>() * 2;
    return pair[0] || pair[1];
  }

  // P of the other warp's keys.
  template <int kPairs>
  __device__ __forceinline__ void Take(std::uint32_t (&P)[kBlocks][kPairs], int turn) const {
    const BlockReader<TileP, Walk::kRowsFirst> reader(TileP{tile_.address + Buffer(turn)},
                                                      WarpGroup<2>() * kRows);
    const auto theirs = reader.From((1 - WarpPart<2>()) * (kKeys / 16));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int k = 0; k < kPairs / 4; ++k) {
        ptx::LoadMatrix4(reinterpret_cast<std::uint32_t(&)[4]>(P[m][4 * k]), theirs.At(m, k));
      }
    }
  }

  // Of two values a row, one from each warp: combine(mine, theirs). All lanes of a row have it.
  template <class Combine>
  __device__ __forceinline__ void Join(float (&values)[kBlocks][2], const Combine& combine) const {
    float* const mine = rows_ + WarpPart<2>() * kTileRows + WarpGroup<2>() * kRows;
    const float* const theirs =
        rows_ + (1 - WarpPart<2>()) * kTileRows + WarpGroup<2>() * kRows;
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n) {
      if (FragmentCol() == 0) mine[8 * n + FragmentRow()] = values[n / 2][n % 2];
    }
    Sync();
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n) {
      values[n / 2][n % 2] = combine(values[n / 2][n % 2], theirs[8 * n + FragmentRow()]);
    }
  }

 private:
  static constexpr int kMaxWarps = 8;
  static constexpr int kTileRows = TileP::kRows;

  __device__ __forceinline__ static std::uint32_t Buffer(int turn) {
    return static_cast<std::uint32_t>(turn % kTurns * TileP::kBytes);
  }

  TileP tile_;
  float* rows_;
  bool* grown_;
};

}  // namespace flashwok::cuda
