// The asynchronous matrix products (wgmma) of a warpgroup. Each of its four warps has its part, 16
// rows, which may run as soon as that warp has issued it; a wait ends when all parts have run.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "device.h"

namespace flashwok::emulator {

class Block;

// Where an operand of 16-bit elements lies, of a descriptor: PTX ISA, "Matrix Descriptor Format"
// and "Strides". The layouts are those that CUTLASS writes down at make_gmma_desc in
// cute/atom/mma_traits_sm90_gmma.hpp, the bits those of GmmaDescriptor in
// cute/arch/mma_sm90_desc.hpp:
//   k contiguous, a swizzle of W bytes: ((8, m), (T, 2)) : ((W, stride), (1, T)), T 16 bytes
//   m or n contiguous:                  ((T, W / 16, m), (8, k)) : ((1, T, leading), (W, stride))
//   no swizzle, k contiguous:           ((8, m), (T, 2)) : ((T, stride), (1, leading))
//   no swizzle, m or n contiguous:      ((T, 1, m), (8, k)) : ((1, T, stride), (T, leading))
struct OperandView {
  std::uint32_t start, leading, stride;
  int swizzle;  // bytes
  bool mn_major;

  static OperandView Decode(std::uint64_t descriptor, bool mn_major);
  // The address of element (row, k), a row being one of the sides m or n.
  std::uint32_t Address(int row, int k) const;
};

struct ProductPart {
  bool issued = false, done = false;
  std::array<float*, 32> d = {};
  std::array<std::array<std::uint32_t, 4>, 32> a = {};
};

struct Product {
  ProductShape shape;
  bool a_in_registers;
  std::uint64_t a, b;
  std::array<ProductPart, 4> parts;
};

class Warpgroup {
 public:
  void Fence(int warp) { warps_[Index(warp)].fenced = true; }
  void Issue(Block& block, int warp, const Product& product, const ProductPart& part);
  void Commit(int warp);
  void Wait(Block& block, int warp, int pending);
  void CheckEnd() const;

 private:
  struct WarpState {
    bool fenced = false;
    std::uint64_t issued = 0;          // products, ever
    std::uint64_t open = 0;            // of them, not committed
    std::deque<std::uint64_t> groups;  // committed: the count issued until then
    bool waiting = false;
    int thread = 0;  // that waits
  };
  static std::size_t Index(int warp) { return static_cast<std::size_t>(warp % 4); }
  void Run(Block& block, Product& product, int part);

  std::array<WarpState, 4> warps_;
  std::deque<Product> products_;
  std::uint64_t first_ = 0;  // the number of products_[0]
};

}  // namespace flashwok::emulator
