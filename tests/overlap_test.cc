// Whether views share memory, against a count of every byte.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <set>
#include <vector>

namespace flashwok::test {
namespace {

Tensor View(std::uintptr_t address, DType dtype, std::initializer_list<std::int64_t> shape,
            std::initializer_list<std::int64_t> strides) {
  Tensor view = Tensor::Contiguous(reinterpret_cast<void*>(address), dtype, shape);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

std::set<std::uintptr_t> Bytes(const Tensor& view) {
  std::set<std::uintptr_t> bytes;
  for (std::int64_t index = 0; index < view.num_elements(); ++index) {
    std::int64_t offset = 0;
    std::int64_t rest = index;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      offset += rest % view.shape[axis] * view.strides[axis];
      rest /= view.shape[axis];
    }
    for (int byte = 0; byte < ItemSize(view.dtype); ++byte) {
      bytes.insert(reinterpret_cast<std::uintptr_t>(view.data) +
                   static_cast<std::uintptr_t>(offset * ItemSize(view.dtype) + byte));
    }
  }
  return bytes;
}

bool Share(const Tensor& a, const Tensor& b) {
  const std::set<std::uintptr_t> bytes = Bytes(a);
  for (std::uintptr_t byte : Bytes(b)) {
    if (bytes.contains(byte)) return true;
  }
  return false;
}

constexpr std::uintptr_t kBase = 1 << 20;
constexpr DType kHalf = DType::kFloat16;

// q, k and v of 4096 rows with 6 + 2 + 2 heads of 64 side by side, in every axis order in use.
TEST(Overlap, PackedViewsInterleave) {
  const std::int64_t row = 10 * 64;
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return View(kBase + 2 * 64 * first, kHalf, {2, 4096, count, 64}, {4096 * row, row, 64, 1});
  };
  EXPECT_FALSE(Overlap(heads(0, 6), heads(6, 2)));
  EXPECT_FALSE(Overlap(heads(8, 2), heads(0, 6)));
  EXPECT_FALSE(Overlap(heads(6, 2), heads(8, 2)));
  EXPECT_TRUE(Overlap(heads(0, 6), heads(5, 2)));
  EXPECT_TRUE(Overlap(heads(0, 6), heads(0, 6)));
  // Heads outside rows; k and v side by side in each head, of widths of their own.
  const auto outside = [&](std::int64_t first, std::int64_t count) {
    return View(kBase + 2 * 64 * 4096 * first, kHalf, {2, 4096, count, 64},
                {4096 * row, 64, 4096 * 64, 1});
  };
  EXPECT_FALSE(Overlap(outside(0, 6), outside(6, 2)));
  EXPECT_TRUE(Overlap(outside(0, 7), outside(6, 2)));
  const auto within = [&](std::int64_t first, std::int64_t width) {
    return View(kBase + 2 * first, kHalf, {2, 4096, 8, width}, {4096 * 1600, 1600, 200, 1});
  };
  EXPECT_FALSE(Overlap(within(0, 128), within(128, 72)));
  EXPECT_TRUE(Overlap(within(0, 129), within(128, 72)));
}

TEST(Overlap, OtherStridesInOneBuffer) {
  // Sequences of a batch with their own q and k rows, one after the other.
  const Tensor dq = View(kBase, kHalf, {8, 100, 4, 32}, {20000, 128, 32, 1});
  const Tensor dk = View(kBase + 2 * 12800, kHalf, {8, 110, 2, 32}, {20000, 64, 32, 1});
  EXPECT_FALSE(Overlap(dq, dk));
  const Tensor early = View(kBase + 2 * 12799, kHalf, {8, 110, 2, 32}, {20000, 64, 32, 1});
  EXPECT_TRUE(Overlap(dq, early));
  // Every second row in columns of its own.
  const Tensor left = View(kBase, DType::kFloat32, {1000, 16}, {32, 1});
  const Tensor right = View(kBase + 64, DType::kFloat32, {500, 16}, {64, 1});
  EXPECT_FALSE(Overlap(left, right));
}

TEST(Overlap, NothingIsShared) {
  const Tensor some = View(kBase, kHalf, {4, 8}, {8, 1});
  EXPECT_FALSE(Overlap(some, View(0, kHalf, {4, 8}, {8, 1})));
  EXPECT_FALSE(Overlap(some, View(kBase, kHalf, {0, 8}, {8, 1})));
  EXPECT_FALSE(Overlap(some, {}));
  EXPECT_FALSE(Overlap(some, View(kBase + 64, kHalf, {4, 8}, {8, 1})));
  EXPECT_TRUE(Overlap(some, View(kBase + 63, DType::kBool, {1}, {1})));
}

// Small views of every kind; strides of an input may be 0 or smaller than what they step over.
TEST(Overlap, IsWhatTheBytesSay) {
  std::mt19937 random(1);
  const auto up_to = [&](int last) { return static_cast<std::int64_t>(random() % (last + 1)); };
  const auto view = [&] {
    const DType dtypes[] = {DType::kFloat32, kHalf, DType::kBool};
    return View(kBase + 4 * static_cast<std::uintptr_t>(up_to(40)), dtypes[up_to(2)],
                {1 + up_to(2), 1 + up_to(3), 1 + up_to(2), 1 + up_to(3)},
                {up_to(60), up_to(30), up_to(12), 1});
  };
  int shared = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const Tensor a = view();
    const Tensor b = view();
    ASSERT_EQ(Overlap(a, b), Share(a, b)) << trial;
    shared += Overlap(a, b);
  }
  EXPECT_GT(shared, 5000);
  EXPECT_LT(shared, 15000);
}

}  // namespace
}  // namespace flashwok::test
