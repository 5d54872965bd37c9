// The kernel of MergeStates as compiled for the GPU, on the emulator, against the CPU's loop: the
// same bits, in whole buffers, so that nothing beside the rows is written.
#include "cuda/kernels/merge_states.cuh"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "cuda/merge_states.h"
#include "flashwok/attention.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/policy.h"

namespace flashwok::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Shape = std::array<std::int64_t, 4>;  // batch, seqlen_q, num_heads, head_dim_v

// A buffer and a view of part of it.
struct Buffer {
  std::vector<std::uint32_t> words;
  Tensor tensor;
  std::int64_t offset = 0, count = 0;  // elements before the view, and of all

  // heads_first: in memory [batch, num_heads, seqlen_q]. `pad`: elements between rows.
  static Buffer Rows(DType dtype, const Shape& shape, bool heads_first, std::int64_t pad,
                     std::int64_t offset) {
    Buffer buffer;
    Tensor& t = buffer.tensor = Tensor::Contiguous(nullptr, dtype, {1, 1, 1, 1});
    std::copy(shape.begin(), shape.end(), t.shape.begin());
    const std::int64_t row = shape[3] + pad;
    t.strides = {shape[1] * shape[2] * row, heads_first ? row : shape[2] * row,
                 heads_first ? shape[1] * row : row, 1};
    buffer.Allocate(offset, shape[0] * t.strides[0]);
    return buffer;
  }
  static Buffer Scalars(const Shape& shape, bool batch_first, std::int64_t offset) {
    Buffer buffer;
    Tensor& t = buffer.tensor = Tensor::Contiguous(nullptr, DType::kFloat32, {1, 1, 1});
    t.shape = {shape[0], shape[2], shape[1]};
    t.strides = {batch_first ? shape[2] * shape[1] : shape[1],
                 batch_first ? shape[1] : shape[0] * shape[1], 1};
    buffer.Allocate(offset, shape[0] * shape[1] * shape[2]);
    return buffer;
  }

  void Allocate(std::int64_t before, std::int64_t elements) {
    offset = before;
    count = before + elements + 8;
    words.assign(static_cast<std::size_t>(count), 0x7FC17FC1u);  // NaN in every dtype
  }
  Tensor View() {
    Tensor view = tensor;
    view.data = reinterpret_cast<char*>(words.data()) + offset * ItemSize(tensor.dtype);
    return view;
  }
  float Get(std::int64_t i) const { return LoadAsFloat(words.data(), tensor.dtype, i); }
};

struct Merge6 {
  Buffer o_a, lse_a, o_b, lse_b, o, lse;
};

struct Spec {
  const char* name = "";
  Shape shape = {};
  DType a = DType::kFloat32, b = DType::kFloat32, o = DType::kFloat32;
  bool heads_first = false;
  std::int64_t pad = 0, offset = 0;
  int in_place = 0;     // 1: over part a; 2: over part b
  unsigned blocks = 0;  // 0: as many as the launch takes
  bool aligned = true;
};

void PrintTo(const Spec& spec, std::ostream* out) { *out << spec.name; }

// Rows in turn: both parts, one of them empty, both, one far below, and what is not finite. The
// contents of a part without weight are NaN.
void Fill(Merge6& m, const Shape& shape) {
  emulator::Random random(7);
  const auto number = [&] { return static_cast<float>(random.Below(20001)) / 5000.0f - 2.0f; };
  const float lse[10][2] = {{0.5f, -1.25f}, {-kInf, 2.0f},   {3.0f, -kInf}, {-kInf, -kInf},
                            {-300.f, 40.f}, {100.f, -100.f}, {kNaN, 1.0f},  {1.0f, kNaN},
                            {kInf, 1.0f},   {-2.0f, -2.0f}};
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t i = 0; i < shape[1]; ++i) {
      for (std::int64_t h = 0; h < shape[2]; ++h, ++row) {
        const float(&two)[2] = lse[row % 10];
        const MergeWeights weights = Merge(two[0], two[1]);
        Buffer* parts[2][2] = {{&m.o_a, &m.lse_a}, {&m.o_b, &m.lse_b}};
        for (int part = 0; part < 2; ++part) {
          const Tensor o = parts[part][0]->View(), scalars = parts[part][1]->View();
          const bool absent = (part == 0 ? weights.a : weights.b) == 0.0f;
          const std::int64_t at = b * o.strides[0] + i * o.strides[1] + h * o.strides[2];
          for (std::int64_t c = 0; c < shape[3]; ++c) {
            const float value = row % 23 == 9 && c == 1 ? kNaN : number();
            StoreFromFloat(o.data, o.dtype, at + c, absent ? kNaN : value);
          }
          static_cast<float*>(scalars.data)[b * scalars.strides[0] + h * scalars.strides[1] +
                                            i * scalars.strides[2]] = two[part] + 0.01f * number();
        }
      }
    }
  }
}

Merge6 Make(const Spec& s) {
  Merge6 m;
  m.o_a = Buffer::Rows(s.a, s.shape, s.heads_first, s.pad, s.offset);
  m.o_b = Buffer::Rows(s.b, s.shape, !s.heads_first, s.pad, s.offset);
  m.o = Buffer::Rows(s.o, s.shape, s.heads_first, s.pad, s.offset);
  m.lse_a = Buffer::Scalars(s.shape, s.heads_first, s.offset);
  m.lse_b = Buffer::Scalars(s.shape, !s.heads_first, s.offset);
  m.lse = Buffer::Scalars(s.shape, s.heads_first, s.offset);
  Fill(m, s.shape);
  return m;
}

// o and lse, where the spec puts them.
std::pair<Buffer*, Buffer*> Outputs(Merge6& m, int in_place) {
  if (in_place == 1) return {&m.o_a, &m.lse_a};
  if (in_place == 2) return {&m.o_b, &m.lse_b};
  return {&m.o, &m.lse};
}

template <int kWidth>
void RunMerge(const cuda::MergeParams& params, unsigned blocks, std::uint64_t seed) {
  using Rows = cuda::MergeRows<kWidth>;
  const auto all = static_cast<unsigned>(Rows::Blocks(params));
  emulator::Launch(blocks == 0 ? all : blocks, Rows::kWarps * 32, 0, [&] { Rows::Run(params); },
                   {.seed = seed});
}

void ExpectSame(const Buffer& got, const Buffer& want) {
  for (std::int64_t i = 0; i < want.count; ++i) {
    const float a = got.Get(i), b = want.Get(i);
    ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
        << "element " << i << ": " << a << " for " << b;
  }
}

class MergeStatesTest : public ::testing::TestWithParam<Spec> {};

TEST_P(MergeStatesTest, GivesTheBitsOfTheCpu) {
  const Spec& s = GetParam();
  Merge6 want = Make(s);
  const auto [want_o, want_lse] = Outputs(want, s.in_place);
  ASSERT_EQ(MergeStates(want.o_a.View(), want.lse_a.View(), want.o_b.View(), want.lse_b.View(),
                        want_o->View(), want_lse->View())
                .message(),
            "");
  for (const std::uint64_t seed : {0, 5}) {
    Merge6 got = Make(s);
    const auto [o, lse] = Outputs(got, s.in_place);
    const cuda::MergeParams params = cuda::MakeMergeParams(
        got.o_a.View(), got.lse_a.View(), got.o_b.View(), got.lse_b.View(), o->View(), lse->View());
    ASSERT_EQ(params.aligned, s.aligned);
    ASSERT_NO_THROW(params.aligned ? RunMerge<8>(params, s.blocks, seed)
                                   : RunMerge<1>(params, s.blocks, seed));
    ExpectSame(*o, *want_o);
    ExpectSame(*lse, *want_lse);
  }
}

constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kBF16 = DType::kBFloat16;

const Spec kSpecs[] = {
    {.name = "float32", .shape = {2, 9, 3, 64}, .a = kF32, .b = kF32, .o = kF32},
    {.name = "float16", .shape = {2, 9, 3, 128}, .a = kF16, .b = kF16, .o = kF16},
    {.name = "bfloat16", .shape = {2, 9, 3, 128}, .a = kBF16, .b = kBF16, .o = kBF16},
    {.name = "mixed", .shape = {1, 11, 3, 40}, .a = kF32, .b = kBF16, .o = kF16},
    {.name = "wide", .shape = {1, 5, 3, 512}, .a = kBF16, .b = kBF16, .o = kF32},
    {.name = "heads_first",
     .shape = {2, 7, 3, 24},
     .a = kF16,
     .b = kF16,
     .o = kF16,
     .heads_first = true,
     .pad = 8,
     .offset = 16},
    {.name = "narrow", .shape = {1, 41, 3, 8}, .a = kBF16, .b = kBF16, .o = kBF16},
    {.name = "odd", .shape = {2, 9, 3, 37}, .a = kF32, .b = kF16, .o = kBF16, .aligned = false},
    {.name = "one_column",
     .shape = {2, 9, 5, 1},
     .a = kBF16,
     .b = kBF16,
     .o = kBF16,
     .aligned = false},
    {.name = "padded_rows",
     .shape = {2, 9, 3, 64},
     .a = kBF16,
     .b = kBF16,
     .o = kBF16,
     .pad = 3,
     .aligned = false},
    {.name = "unaligned",
     .shape = {2, 9, 3, 64},
     .a = kF16,
     .b = kF16,
     .o = kF16,
     .offset = 1,
     .aligned = false},
    {.name = "over_a", .shape = {2, 9, 3, 64}, .a = kBF16, .b = kF32, .o = kBF16, .in_place = 1},
    {.name = "over_b",
     .shape = {2, 9, 3, 48},
     .a = kF32,
     .b = kF32,
     .o = kF32,
     .heads_first = true,
     .in_place = 2},
    {.name = "over_a_odd",
     .shape = {2, 9, 3, 50},
     .a = kF16,
     .b = kF16,
     .o = kF16,
     .in_place = 1,
     .aligned = false},
    {.name = "few_blocks", .shape = {3, 50, 3, 64}, .a = kF16, .b = kF16, .o = kF16, .blocks = 2},
    {.name = "few_blocks_in_place",
     .shape = {3, 50, 3, 33},
     .a = kF32,
     .b = kF32,
     .o = kF32,
     .in_place = 2,
     .blocks = 1,
     .aligned = false},
    {.name = "many_heads",
     .shape = {70000, 1, 1, 1},
     .a = kF32,
     .b = kF32,
     .o = kF32,
     .in_place = 1,
     .aligned = false},
    {.name = "no_columns", .shape = {2, 9, 3, 0}, .a = kF32, .b = kF32, .o = kF32},
};

INSTANTIATE_TEST_SUITE_P(Layouts, MergeStatesTest, ::testing::ValuesIn(kSpecs),
                         [](const auto& test) { return test.param.name; });

// An input broadcast over heads, and an output whose second head lies 8 GiB further: more than 32
// bits of elements. Untouched pages of the mapping take no memory.
TEST(MergeStates, BroadcastInputAndFarOutput) {
  constexpr std::int64_t kFar = std::int64_t{1} << 31;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kFar) * 4 + 4096;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
  Merge6 m = Make({.name = "", .shape = {1, 3, 2, 8}});
  Tensor o_b = m.o_b.View(), lse_b = m.lse_b.View(), far = m.o.View();
  o_b.strides[2] = 0;
  lse_b.strides[1] = 0;
  far.data = memory;
  far.strides = {0, 8, kFar, 1};
  const Tensor o_a = m.o_a.View(), lse_a = m.lse_a.View();
  ASSERT_TRUE(MergeStates(o_a, lse_a, o_b, lse_b, m.o.View(), m.lse.View()).ok());
  const Buffer want_lse = m.lse;
  RunMerge<8>(cuda::MakeMergeParams(o_a, lse_a, o_b, lse_b, far, m.lse.View()), 0, 0);
  ExpectSame(m.lse, want_lse);
  const auto* want = static_cast<const float*>(m.o.View().data);
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t n = 0; n < 16; ++n) {
      const float got = static_cast<const float*>(memory)[i * 8 + n / 8 * kFar + n % 8];
      const float same = want[i * 16 + n];
      EXPECT_TRUE(got == same || (std::isnan(got) && std::isnan(same))) << i << ", " << n;
    }
  }
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace flashwok::test
