// The device functions of CUDA that kernels call without including anything.
#pragma once

// Barriers and fences.
inline void __syncthreads() { flashwok::emulator::SyncThreads(flashwok::emulator::Vote::kOr, 0); }
inline int __syncthreads_or(int predicate) {
  return flashwok::emulator::SyncThreads(flashwok::emulator::Vote::kOr, predicate);
}
inline int __syncthreads_and(int predicate) {
  return flashwok::emulator::SyncThreads(flashwok::emulator::Vote::kAnd, predicate);
}
inline int __syncthreads_count(int predicate) {
  return flashwok::emulator::SyncThreads(flashwok::emulator::Vote::kCount, predicate);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { flashwok::emulator::SyncWarp(mask); }
inline void __threadfence() { flashwok::emulator::YieldThread(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { flashwok::emulator::YieldThread(); }
inline long long clock64() { return static_cast<long long>(flashwok::emulator::Clock()); }
[[noreturn]] inline void __trap() { flashwok::emulator::Trap(); }

// Votes and shuffles.
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return flashwok::emulator::Ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
// All lanes of a block's warps, since blocks are of whole warps.
inline unsigned __activemask() { return 0xFFFFFFFFu; }

namespace flashwok::emulator {
template <class T>
T ShuffleValue(Shuffle kind, unsigned mask, T value, int operand, int width) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(kind, mask, bits, operand, width);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace flashwok::emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  using flashwok::emulator::Shuffle;
  return flashwok::emulator::ShuffleValue(Shuffle::kIndex, mask, value, lane, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using flashwok::emulator::Shuffle;
  return flashwok::emulator::ShuffleValue(Shuffle::kUp, mask, value, static_cast<int>(delta),
                                          width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using flashwok::emulator::Shuffle;
  return flashwok::emulator::ShuffleValue(Shuffle::kDown, mask, value, static_cast<int>(delta),
                                          width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  using flashwok::emulator::Shuffle;
  return flashwok::emulator::ShuffleValue(Shuffle::kXor, mask, value, lane_mask, width);
}

inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  for (int step = 1; step < 32; step *= 2) value |= __shfl_xor_sync(mask, value, step);
  return value;
}

// Atomics: one fiber runs at a time. Others get a turn first.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  flashwok::emulator::YieldThread();
  const T old = *address;
  *address = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  flashwok::emulator::YieldThread();
  const T old = *address;
  *address = value;
  return old;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  flashwok::emulator::YieldThread();
  const T old = *address;
  *address = old < value ? value : old;
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  flashwok::emulator::YieldThread();
  const T old = *address;
  *address = value < old ? value : old;
  return old;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  flashwok::emulator::YieldThread();
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  flashwok::emulator::YieldThread();
  const unsigned old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}

// Arithmetic. glibc declares some of these names itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __tanhf tanhf
#define __isnanf(x) std::isnan(static_cast<float>(x))
#define __isinff(x) std::isinf(static_cast<float>(x))
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __vimax3_s32(int a, int b, int c) { return std::max(a, std::max(b, c)); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= ((x >> bit) & 1u) << (31 - bit);
  return reversed;
}

template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
