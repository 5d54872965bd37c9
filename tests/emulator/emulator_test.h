// What the emulator's tests share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "emulator.h"

namespace flashwok::emulator {

constexpr std::uint64_t kSeeds = 24;

// Whole numbers of a few bits: exact in bfloat16, as are sums of their products in float32.
inline std::vector<std::uint16_t> Numbers(int count, std::uint32_t seed) {
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(count));
  for (std::uint16_t& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = FloatToBf16(static_cast<float>(static_cast<int>(seed >> 24) - 128));
  }
  return numbers;
}

// A matrix [rows, columns] of 16-bit elements in boxes of box_rows by box_columns.
inline cuda::ptx::TensorMap MapOf(const std::vector<std::uint16_t>& matrix, int rows, int columns,
                                  int box_rows, int box_columns, int swizzle) {
  cuda::ptx::TensorMap map;
  const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
  EncodeTiled(&map, 2, matrix.data(), {c, r, 1, 1}, {c * 2, r * c * 2, r * c * 2},
              {static_cast<std::uint32_t>(box_columns), static_cast<std::uint32_t>(box_rows), 1, 1},
              swizzle);
  return map;
}

// Does run(seed) go wrong, by an error or by returning false, for some seed?
template <class Run>
bool Caught(Run run) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    try {
      if (!run(seed)) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

inline std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace flashwok::emulator
