// The shared memory of a block; addresses are offsets into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flashwok::emulator {

// Where a swizzle of 0, 32, 64 or 128 bytes puts what would lie at an address: the number of the 16
// bytes within that width (bits 4 on) is xored with bits 7 on, those of the line of 128 bytes. The
// copy engine and wgmma agree on it: PTX ISA, "Swizzling Modes"; CUTLASS's Swizzle<1 | 2 | 3, 4,
// 3>.
constexpr std::uint32_t SwizzledAddress(std::uint32_t address, int swizzle) {
  const std::uint32_t groups = swizzle == 0 ? 0 : static_cast<std::uint32_t>(swizzle) / 16 - 1;
  return address ^ ((address >> 3) & (groups << 4));
}

class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  unsigned char* base() { return data_; }
  std::uint32_t Offset(const void* pointer) const;
  // Throws unless [address, address + bytes) lies within and is aligned.
  unsigned char* At(std::uint32_t address, int bytes, int alignment, const char* what);

  // Ordinary writes of a thread at a time, which the tensor cores and the copy engine see only
  // after a fence.proxy.async of the writer or of who starts them. Of those writes that go through
  // ptx.
  void Wrote(std::uint32_t address, int bytes, int thread, std::uint64_t time);
  void WroteAsync(std::uint32_t address, int bytes) { Wrote(address, bytes, -1, 0); }
  void CheckFenced(std::uint32_t address, int bytes, const char* what);

  void CheckEnd() const;

 private:
  struct Writer {
    int thread = -1;
    std::uint64_t time = 0;
  };
  std::size_t bytes_;
  unsigned char* data_;
  std::vector<Writer> writers_;  // of each 16 bytes
};

}  // namespace flashwok::emulator
