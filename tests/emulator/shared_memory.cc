#include "shared_memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "block.h"

namespace flashwok::emulator {
namespace {

constexpr std::size_t kAlignment = 1024;
constexpr std::size_t kGuard = 4096;  // after the memory, for accesses by plain pointers
constexpr unsigned char kGuardByte = 0xA5;
constexpr std::size_t kLargest = 227 << 10;  // of a block on sm_90

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : bytes_(bytes), writers_((bytes + 15) / 16) {
  if (bytes > kLargest) throw Error("more than 227 KiB of shared memory");
  data_ = static_cast<unsigned char*>(::operator new(bytes + kGuard, std::align_val_t(kAlignment)));
  std::memset(data_, 0xFF, bytes);
  std::memset(data_ + bytes, kGuardByte, kGuard);
}

SharedMemory::~SharedMemory() { ::operator delete(data_, std::align_val_t(kAlignment)); }

std::uint32_t SharedMemory::Offset(const void* pointer) const {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(data_);
  if (offset > bytes_) throw Error("the address of what is not in shared memory");
  return static_cast<std::uint32_t>(offset);
}

unsigned char* SharedMemory::At(std::uint32_t address, int bytes, int alignment, const char* what) {
  if (address + static_cast<std::uint64_t>(bytes) > bytes_) {
    throw Error(std::string(what) + ": shared address " + std::to_string(address) + " of " +
                std::to_string(bytes_));
  }
  if (address % static_cast<std::uint32_t>(alignment) != 0) {
    throw Error(std::string(what) + ": shared address " + std::to_string(address) +
                " is not a multiple of " + std::to_string(alignment));
  }
  return data_ + address;
}

void SharedMemory::Wrote(std::uint32_t address, int bytes, int thread, std::uint64_t time) {
  const std::size_t last = (address + static_cast<std::size_t>(bytes) - 1) / 16;
  for (std::size_t i = address / 16; i <= last; ++i) writers_[i] = {thread, time};
}

void SharedMemory::CheckFenced(std::uint32_t address, int bytes, const char* what) {
  Block& block = Here();
  const std::size_t last = (address + static_cast<std::size_t>(bytes) - 1) / 16;
  for (std::size_t i = address / 16; i <= last; ++i) {
    const Writer& writer = writers_[i];
    if (writer.thread < 0) continue;
    if (block.thread(writer.thread).fenced > writer.time) continue;
    if (block.self().fenced > writer.time) continue;
    throw Error(std::string(what) + ": thread " + std::to_string(writer.thread) +
                " wrote shared address " + std::to_string(i * 16) + " with no proxy fence since");
  }
}

void SharedMemory::CheckEnd() const {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (data_[bytes_ + i] != kGuardByte) {
      throw Error("a write " + std::to_string(i) + " bytes past the end of shared memory");
    }
  }
}

unsigned char* SharedBase() { return Here().shared.base(); }
std::uint32_t SharedOffset(const void* pointer) { return Here().shared.Offset(pointer); }

void WriteShared(std::uint32_t address, const void* value, int bytes) {
  Block& block = Here();
  std::memcpy(block.shared.At(address, bytes, bytes, "st.shared"), value,
              static_cast<std::size_t>(bytes));
  block.shared.Wrote(address, bytes, block.thread(), block.Tick());
}

void ReadShared(std::uint32_t address, void* value, int bytes) {
  std::memcpy(value, Here().shared.At(address, bytes, bytes, "ld.shared"),
              static_cast<std::size_t>(bytes));
}

void FenceAsync() {
  Block& block = Here();
  block.self().fenced = block.Tick();
}

}  // namespace flashwok::emulator
