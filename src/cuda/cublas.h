// The two matrix products of standard attention by cuBLAS, which is looked for at run time: a
// library of half a gigabyte that nothing else here needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flashwok/status.h"
#include "flashwok/tensor.h"

namespace flashwok::cuda {

// Why there is none, or empty.
std::string CublasAbsence();

// Scratch that the products take.
inline constexpr std::size_t kCublasWorkspace = std::size_t{32} << 20;

// `count` row-major products C = A op(B), float32 accumulation; strides in elements.
struct Product {
  bool transpose_b = false;  // B is [n, k], else [k, n]
  std::int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  std::int64_t a_row = 0, b_row = 0, c_row = 0;        // from row to row
  std::int64_t a_batch = 0, b_batch = 0, c_batch = 0;  // from product to product
  DType dtype = DType::kBFloat16;                      // of A and B
  DType c_dtype = DType::kBFloat16;
  std::int64_t count = 1;
};

Status Multiply(const Product& product, void* workspace, void* stream);

}  // namespace flashwok::cuda
