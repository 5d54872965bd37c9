// The instructions that a warp executes together.
#include <cstring>
#include <string>
#include <utility>

#include "block.h"
#include "common/dtype.h"

namespace flashwok::emulator {
namespace {

template <class T>
T& Of(void* const* lanes, int lane) {
  return *static_cast<T*>(lanes[lane]);
}

struct ShuffleArguments {
  Shuffle kind;
  std::uint64_t bits;
  int operand, width;
  std::uint64_t result;
};

// The lane that `lane` reads from; PTX ISA, "shfl.sync".
int ShuffleSource(const ShuffleArguments& mine, int lane) {
  const int first = lane & ~(mine.width - 1), end = first + mine.width;
  int source = lane;
  switch (mine.kind) {
    case Shuffle::kIndex: return first | (mine.operand & (mine.width - 1));
    case Shuffle::kUp: source = lane - mine.operand; return source < first ? lane : source;
    case Shuffle::kDown: source = lane + mine.operand; break;
    case Shuffle::kXor: source = lane ^ mine.operand; break;
  }
  return source >= end ? lane : source;
}

void ShuffleBody(void* const* lanes, std::uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto& mine = Of<ShuffleArguments>(lanes, lane);
    const int source = ShuffleSource(mine, lane);
    if (source < 0 || source > 31 || (mask >> source & 1) == 0) {
      throw Error("shfl.sync: lane " + std::to_string(lane) + " reads lane " +
                  std::to_string(source) + ", which does not take part");
    }
    mine.result = Of<ShuffleArguments>(lanes, source).bits;
  }
}

struct BallotArguments {
  bool predicate;
  std::uint32_t result;
};

struct MatrixArguments {
  std::uint32_t address;
  std::uint32_t* r;
  const std::uint32_t* values;
};

// Element (row, column) of the matrices: in register `matrix` of lane row * 4 + column / 2.
template <bool kTransposed>
void LoadBody(void* const* lanes, std::uint32_t) {
  SharedMemory& shared = Here().shared;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t elements[8][8];
    for (int row = 0; row < 8; ++row) {
      const std::uint32_t address = Of<MatrixArguments>(lanes, matrix * 8 + row).address;
      std::memcpy(elements[row], shared.At(address, 16, 16, "ldmatrix"), 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const std::uint32_t low = kTransposed ? elements[column][row] : elements[row][column];
      const std::uint32_t high =
          kTransposed ? elements[column + 1][row] : elements[row][column + 1];
      Of<MatrixArguments>(lanes, lane).r[matrix] = low | high << 16;
    }
  }
}

void StoreBody(void* const* lanes, std::uint32_t) {
  Block& block = Here();
  const std::uint64_t time = block.Tick();
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      const int thread = matrix * 8 + row;
      const std::uint32_t address = Of<MatrixArguments>(lanes, thread).address;
      unsigned char* to = block.shared.At(address, 16, 16, "stmatrix");
      for (int pair = 0; pair < 4; ++pair) {
        std::memcpy(to + pair * 4, &Of<MatrixArguments>(lanes, row * 4 + pair).values[matrix], 4);
      }
      block.shared.Wrote(address, 16, block.warp() * 32 + thread, time);
    }
  }
}

struct MultiplyArguments {
  DType type;
  float* d;
  const std::uint32_t *a, *b;
};

float Half16(DType type, std::uint32_t pair, int high) {
  const auto bits = static_cast<std::uint16_t>(pair >> high * 16);
  return type == DType::kBFloat16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

// As in products.cc: without the sanitizers, on these arrays alone.
[[gnu::noinline, gnu::no_sanitize("address", "undefined")]] void Multiply(
    const float (&a)[16][16], const float (&b)[16][8], float (&sums)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    for (float& sum : sums[row]) sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
}

void MultiplyBody(void* const* lanes, std::uint32_t) {
  const DType type = Of<MultiplyArguments>(lanes, 0).type;
  float a[16][16], b[16][8], sums[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = Of<MultiplyArguments>(lanes, lane);
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i / 2 % 2 * 8, column = lane % 4 * 2 + i / 4 * 8 + i % 2;
      a[row][column] = Half16(type, mine.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i) {
      b[lane % 4 * 2 + i / 2 * 8 + i % 2][lane / 4] = Half16(type, mine.b[i / 2], i % 2);
    }
  }
  Multiply(a, b, sums);
  for (int lane = 0; lane < 32; ++lane) {
    float* d = Of<MultiplyArguments>(lanes, lane).d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      d[i] += sums[row][column];
    }
  }
}

struct RegisterArguments {
  int registers;
  bool take;
};

// A block shares out what its launch was given; who takes more waits until others have given.
void RegisterBody(void* const* lanes, std::uint32_t) {
  const auto wanted = Of<RegisterArguments>(lanes, 0);
  Block& block = Here();
  int& mine = block.self_warp().registers;
  if (wanted.take ? wanted.registers < mine : wanted.registers > mine) {
    throw Error("setmaxnreg: from " + std::to_string(mine) + " to " +
                std::to_string(wanted.registers));
  }
  const auto fits = [&] {
    int total = wanted.registers - mine;
    for (const Warp& warp : block.warps()) total += warp.registers;
    return total <= block.register_pool;
  };
  while (!fits()) {
    block.register_waiters.push_back(block.thread());
    block.Suspend({"setmaxnreg, for registers", static_cast<std::uint32_t>(wanted.registers)});
  }
  mine = wanted.registers;
  for (const int thread : std::exchange(block.register_waiters, {})) block.Wake(thread);
}

}  // namespace

std::uint64_t ShuffleBits(Shuffle kind, std::uint32_t mask, std::uint64_t bits, int operand,
                          int width) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) throw Error("shfl.sync: the width");
  ShuffleArguments mine{kind, bits, operand, width, 0};
  Here().Collective("shfl.sync", mask, ShuffleBody, &mine);
  return mine.result;
}

std::uint32_t Ballot(std::uint32_t mask, bool predicate) {
  BallotArguments mine{predicate, 0};
  Here().Collective(
      "vote.sync", mask,
      [](void* const* lanes, std::uint32_t present) {
        std::uint32_t result = 0;
        for (int lane = 0; lane < 32; ++lane) {
          if ((present >> lane & 1) == 0) continue;
          result |= static_cast<std::uint32_t>(Of<BallotArguments>(lanes, lane).predicate) << lane;
        }
        for (int lane = 0; lane < 32; ++lane) {
          if ((present >> lane & 1) != 0) Of<BallotArguments>(lanes, lane).result = result;
        }
      },
      &mine);
  return mine.result;
}

void SyncWarp(std::uint32_t mask) {
  Here().Collective(
      "bar.warp.sync", mask, [](void* const*, std::uint32_t) {}, nullptr);
}

void LoadMatrices(std::uint32_t* r, std::uint32_t address, bool transposed) {
  MatrixArguments mine{address, r, nullptr};
  Here().Collective("ldmatrix", kAllLanes, transposed ? LoadBody<true> : LoadBody<false>, &mine);
}

void StoreMatrices(std::uint32_t address, const std::uint32_t* r) {
  MatrixArguments mine{address, nullptr, r};
  Here().Collective("stmatrix", kAllLanes, StoreBody, &mine);
}

void MultiplyWarp(DType type, float* d, const std::uint32_t* a, const std::uint32_t* b) {
  MultiplyArguments mine{type, d, a, b};
  Here().Collective("mma.sync", kAllLanes, MultiplyBody, &mine);
}

void SetRegisters(int registers, bool take) {
  RegisterArguments mine{registers, take};
  Here().Collective("setmaxnreg", kAllLanes, RegisterBody, &mine);
}

void YieldThread() { Here().Yield(); }
std::uint64_t Clock() { return Here().Tick(); }
std::uint64_t GlobalTimer() { return Here().Nanoseconds(); }
void Trap() { throw Error("__trap"); }

}  // namespace flashwok::emulator
