// Products of bfloat16 tiles with float32 accumulation, by the instructions made for them. Each set
// of instructions has a file of its own, compiled for it, and is chosen at run time.
#pragma once

#include <cstdint>

namespace flashwok::cpu {

// Two bfloat16 values next to each other along the depth of a product, the first in the low half.
using Bf16Pair = std::uint32_t;

struct Bf16Products {
  // Around the products of one thread: the tile registers are taken and given back.
  void (*begin)();
  void (*end)();
  // C [rows, cols] (+)= A [rows, depth] B [depth, cols]; depth counts pairs and, like cols, is a
  // multiple of 16. All three have the leading dimension kTileLd, in elements or pairs.
  void (*gemm)(bool add, std::int64_t rows, std::int64_t cols, std::int64_t depth,
               const Bf16Pair* a, const Bf16Pair* b, float* c);
  // To nearest even; cols is a multiple of 32.
  void (*round)(std::int64_t rows, std::int64_t cols, const float* source, Bf16Pair* target);
  // The same with rows woven two by two: pairs run down the columns. cols is a multiple of 16; rows
  // from `rows` up to `padded`, a multiple of 32, become zero.
  void (*weave)(std::int64_t rows, std::int64_t padded, std::int64_t cols, const float* source,
                Bf16Pair* target);
};

// Null where the machine (or the compiler) has none.
const Bf16Products* AmxProducts();
const Bf16Products* Avx512Bf16Products();

}  // namespace flashwok::cpu
