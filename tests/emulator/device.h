// What the stand-ins of the device's instructions call, from inside a kernel. None is inline, so
// that arrays given by pointer live in memory and may change until the wait that covers them.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::emulator {

unsigned char* SharedBase();
std::uint32_t SharedOffset(const void* pointer);
void WriteShared(std::uint32_t address, const void* value, int bytes);
void ReadShared(std::uint32_t address, void* value, int bytes);
void FenceAsync();

// Warps.
enum class Shuffle { kIndex, kUp, kDown, kXor };
std::uint64_t ShuffleBits(Shuffle kind, std::uint32_t mask, std::uint64_t bits, int operand,
                          int width);
std::uint32_t Ballot(std::uint32_t mask, bool predicate);
void SyncWarp(std::uint32_t mask);
void LoadMatrices(std::uint32_t* r, std::uint32_t address, bool transposed);
void StoreMatrices(std::uint32_t address, const std::uint32_t* r);
void MultiplyWarp(DType type, float* d, const std::uint32_t* a, const std::uint32_t* b);
void SetRegisters(int registers, bool take);

// Barriers.
enum class Vote { kOr, kAnd, kCount };
int SyncThreads(Vote vote, int predicate);
void NamedBarrier(int barrier, int threads, bool wait);
void InitMbarrier(std::uint32_t address, int arrivals);
void FenceMbarrierInit();
void ArriveMbarrier(std::uint32_t address, std::uint32_t expect_bytes);
void WaitMbarrier(std::uint32_t address, std::uint32_t parity);

// Copies of a thread.
void CopyAsync(std::uint32_t destination, const void* source, bool valid);
void CommitCopies();
void WaitCopies(int pending);
void CheckMap(const void* map);
void LoadTile(std::uint32_t destination, const void* map, std::uint32_t barrier,
              const int (&coordinates)[4]);
void StoreTile(const void* map, std::uint32_t source, const int (&coordinates)[4]);
void CommitStores();
void WaitStores(int pending, bool read_only);

// Asynchronous products of a warpgroup.
struct ProductShape {
  DType type;
  int n;
  bool transposed;
  bool accumulate;
};
void FenceProducts();
void IssueProduct(const ProductShape& shape, float* d, const std::uint32_t* a_registers,
                  std::uint64_t a, std::uint64_t b);
void CommitProducts();
void WaitProducts(int pending);

// Lets others run; what a loop that waits for another thread must call.
void YieldThread();
std::uint64_t Clock();
std::uint64_t GlobalTimer();
[[noreturn]] void Trap();

}  // namespace flashwok::emulator
