#include "products.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "block.h"
#include "common/dtype.h"

namespace flashwok::emulator {
namespace {

float ToFloat(DType type, std::uint16_t bits) {
  return type == DType::kBFloat16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

// Eight elements from (row, k) on, along the side that is contiguous.
void Load8(SharedMemory& memory, const OperandView& view, DType type, int row, int k,
           float (&elements)[8]) {
  std::uint16_t bits[8];
  std::memcpy(bits, memory.At(view.Address(row, k), 16, 16, "wgmma"), sizeof(bits));
  for (int i = 0; i < 8; ++i) elements[i] = ToFloat(type, bits[i]);
}

// It lies within, and ordinary writes to it have been fenced.
void CheckOperand(SharedMemory& memory, const OperandView& view, int rows) {
  for (int row = 0; row < rows; row += view.mn_major ? 8 : 1) {
    for (int k = 0; k < 16; k += view.mn_major ? 1 : 8) {
      const std::uint32_t address = view.Address(row, k);
      memory.At(address, 16, 16, "wgmma");
      memory.CheckFenced(address, 16, "wgmma");
    }
  }
}

// The fragment of Mma16816.
void UnpackA(DType type, const ProductPart& part, float (&a)[16][16]) {
  for (int lane = 0; lane < 32; ++lane) {
    const auto& registers = part.a[static_cast<std::size_t>(lane)];
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t pair = registers[static_cast<std::size_t>(i / 2)];
      const int row = lane / 4 + i / 2 % 2 * 8, column = lane % 4 * 2 + i / 4 * 8 + i % 2;
      a[row][column] = ToFloat(type, static_cast<std::uint16_t>(pair >> i % 2 * 16));
    }
  }
}

void LoadA(SharedMemory& memory, const Product& product, int first_row, float (&a)[16][16]) {
  const OperandView view = OperandView::Decode(product.a, false);
  float elements[8];
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; k += 8) {
      Load8(memory, view, product.shape.type, first_row + row, k, elements);
      std::copy_n(elements, 8, a[row] + k);
    }
  }
}

void LoadB(SharedMemory& memory, const Product& product, float (&b)[16][256]) {
  const bool transposed = product.shape.transposed;
  const OperandView view = OperandView::Decode(product.b, transposed);
  float elements[8];
  for (int j = 0; j < product.shape.n; j += transposed ? 8 : 1) {
    for (int k = 0; k < 16; k += transposed ? 1 : 8) {
      Load8(memory, view, product.shape.type, j, k, elements);
      for (int i = 0; i < 8; ++i) b[transposed ? k : k + i][transposed ? j + i : j] = elements[i];
    }
  }
}

// More than a third of V3's time with sanitizers in it: they stay out. It touches these arrays
// alone, and n, of the instruction's shape, is at most 256.
[[gnu::noinline, gnu::no_sanitize("address", "undefined")]] void Multiply(
    const float (&a)[16][16], const float (&b)[16][256], int n, float (&sums)[16][256]) {
  for (int row = 0; row < 16; ++row) {
    for (int j = 0; j < n; ++j) sums[row][j] = 0.0f;
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < n; ++j) sums[row][j] += a[row][k] * b[k][j];
    }
  }
}

struct IssueArguments {
  ProductShape shape;
  float* d;
  const std::uint32_t* a_registers;
  std::uint64_t a, b;
};

void IssueBody(void* const* lanes, std::uint32_t) {
  const auto& first = *static_cast<const IssueArguments*>(lanes[0]);
  Product product{first.shape, first.a_registers != nullptr, first.a, first.b, {}};
  ProductPart part;
  part.issued = true;
  for (std::size_t i = 0; i < 32; ++i) {
    const auto& mine = *static_cast<const IssueArguments*>(lanes[i]);
    if (mine.a != first.a || mine.b != first.b || mine.shape.n != first.shape.n ||
        mine.shape.accumulate != first.shape.accumulate) {
      throw Error("wgmma: lanes of a warp differ in descriptors or shape");
    }
    part.d[i] = mine.d;
    if (product.a_in_registers) std::copy_n(mine.a_registers, 4, part.a[i].begin());
  }
  Block& block = Here();
  block.warpgroups[static_cast<std::size_t>(block.warp() / 4)].Issue(block, block.warp(), product,
                                                                     part);
}

Warpgroup& Group(Block& block) {
  const int group = block.warp() / 4;
  if (static_cast<int>(block.warps().size()) < group * 4 + 4) {
    throw Error("wgmma: fewer than four warps in the last warpgroup");
  }
  return block.warpgroups[static_cast<std::size_t>(group)];
}

}  // namespace

OperandView OperandView::Decode(std::uint64_t descriptor, bool mn_major) {
  constexpr int kSwizzles[] = {0, 128, 64, 32};
  const auto field = [&](int bit) {
    return static_cast<std::uint32_t>(descriptor >> bit & 0x3FFF) << 4;
  };
  OperandView view{field(0), field(16), field(32), kSwizzles[descriptor >> 62], mn_major};
  if ((descriptor >> 49 & 7) != 0) throw Error("wgmma: a descriptor with a base offset");
  const std::uint64_t unused = ~(0x3FFFull | 0x3FFFull << 16 | 0x3FFFull << 32 | 3ull << 62);
  if ((descriptor & unused) != 0) throw Error("wgmma: a descriptor with unused bits set");
  // The rows of a swizzled operand start where the pattern of 8 rows does.
  const auto width = static_cast<std::uint32_t>(view.swizzle);
  if (width != 0 && view.start % (8 * width) >= width) {
    throw Error("wgmma: an operand that starts within the swizzle's pattern");
  }
  return view;
}

std::uint32_t OperandView::Address(int row, int k) const {
  const auto r = static_cast<std::uint32_t>(row), c = static_cast<std::uint32_t>(k);
  const auto width = static_cast<std::uint32_t>(swizzle);
  std::uint32_t address = start;
  if (swizzle == 0) {  // blocks of 8 x 8, dense
    address += mn_major ? r % 8 * 2 + c % 8 * 16 + r / 8 * stride + c / 8 * leading
                        : r % 8 * 16 + c % 8 * 2 + r / 8 * stride + c / 8 * leading;
  } else if (mn_major) {
    address += r % (width / 2) * 2 + r / (width / 2) * leading + c % 8 * width + c / 8 * stride;
  } else {
    address += r % 8 * width + r / 8 * stride + c * 2;
  }
  return SwizzledAddress(address, swizzle);
}

void Warpgroup::Issue(Block& block, int warp, const Product& product, const ProductPart& part) {
  WarpState& state = warps_[Index(warp)];
  if (!state.fenced) throw Error("wgmma: no wgmma.fence since the start or the last wait");
  const std::uint64_t number = state.issued++ - first_;
  ++state.open;
  if (number == products_.size()) products_.push_back(product);
  Product& mine = products_[number];
  if (mine.a != product.a || mine.b != product.b || mine.shape.n != product.shape.n ||
      mine.shape.accumulate != product.shape.accumulate ||
      mine.shape.transposed != product.shape.transposed ||
      mine.a_in_registers != product.a_in_registers) {
    throw Error("wgmma: warps of a warpgroup differ in descriptors or shape");
  }
  mine.parts[Index(warp)] = part;
  const OperandView b = OperandView::Decode(mine.b, mine.shape.transposed);
  CheckOperand(block.shared, b, mine.shape.n);
  if (!mine.a_in_registers) CheckOperand(block.shared, OperandView::Decode(mine.a, false), 64);
  if (block.random.Chance(block.policy.product_now)) {
    for (std::uint64_t i = 0; i <= number; ++i) Run(block, products_[i], warp % 4);
  }
  for (WarpState& other : warps_) {
    if (other.waiting) block.Wake(other.thread);
    other.waiting = false;
  }
}

void Warpgroup::Commit(int warp) {
  WarpState& state = warps_[Index(warp)];
  state.open = 0;
  state.groups.push_back(state.issued);
}

void Warpgroup::Wait(Block& block, int warp, int pending) {
  WarpState& state = warps_[Index(warp)];
  state.fenced = false;
  std::uint64_t count = 0;
  while (static_cast<int>(state.groups.size()) > pending) {
    count = state.groups.front();
    state.groups.pop_front();
  }
  const auto all_issued = [&] {
    return std::all_of(warps_.begin(), warps_.end(),
                       [&](const WarpState& other) { return other.issued >= count; });
  };
  while (!all_issued()) {
    state.waiting = true;
    state.thread = block.thread();
    block.Suspend({"wgmma.wait_group, for the warpgroup's other warps", 0});
  }
  for (std::uint64_t i = first_; i < count; ++i) {
    for (int part = 0; part < 4; ++part) Run(block, products_[i - first_], part);
  }
  while (first_ < count) {
    products_.pop_front();
    ++first_;
  }
}

void Warpgroup::CheckEnd() const {
  for (const WarpState& state : warps_) {
    if (state.open != 0 || !state.groups.empty()) {
      throw Error("a block ends with wgmma products not waited for");
    }
  }
}

void Warpgroup::Run(Block& block, Product& product, int index) {
  ProductPart& part = product.parts[static_cast<std::size_t>(index)];
  if (part.done) return;
  part.done = true;
  const int n = product.shape.n;
  float a[16][16], b[16][256], sums[16][256];
  if (product.a_in_registers) {
    UnpackA(product.shape.type, part, a);
  } else {
    LoadA(block.shared, product, index * 16, a);
  }
  LoadB(block.shared, product, b);
  Multiply(a, b, n, sums);
  for (int row = 0; row < 16; ++row) {
    for (int j = 0; j < n; ++j) {
      float* d = part.d[static_cast<std::size_t>(row % 8 * 4 + j % 8 / 2)];
      float& element = d[j / 8 * 4 + row / 8 * 2 + j % 2];
      element = product.shape.accumulate ? element + sums[row][j] : sums[row][j];
    }
  }
}

void FenceProducts() {
  Here().Collective(
      "wgmma.fence", kAllLanes,
      [](void* const*, std::uint32_t) { Group(Here()).Fence(Here().warp()); }, nullptr);
}

void IssueProduct(const ProductShape& shape, float* d, const std::uint32_t* a_registers,
                  std::uint64_t a, std::uint64_t b) {
  IssueArguments mine{shape, d, a_registers, a, b};
  Here().Collective("wgmma.mma_async", kAllLanes, IssueBody, &mine);
}

void CommitProducts() {
  Here().Collective(
      "wgmma.commit_group", kAllLanes,
      [](void* const*, std::uint32_t) { Group(Here()).Commit(Here().warp()); }, nullptr);
}

void WaitProducts(int pending) {
  Here().Collective(
      "wgmma.wait_group", kAllLanes,
      [](void* const* lanes, std::uint32_t) {
        Block& block = Here();
        Group(block).Wait(block, block.warp(), *static_cast<const int*>(lanes[0]));
      },
      &pending);
}

}  // namespace flashwok::emulator
