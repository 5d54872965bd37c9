#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves on the stack, stores the stack pointer in *from, and
// continues where `to` was stored.
extern "C" void flashwok_emulator_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl flashwok_emulator_switch
.type flashwok_emulator_switch, @function
flashwok_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size flashwok_emulator_switch, .-flashwok_emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl flashwok_emulator_switch
.type flashwok_emulator_switch, %function
flashwok_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size flashwok_emulator_switch, .-flashwok_emulator_switch
)");
#else
#error "The emulator knows how to switch stacks on x86-64 and aarch64."
#endif

namespace flashwok::emulator {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kGuardBytes = 64 << 10;

void* outside = nullptr;  // where Resume was called
#ifdef EMULATOR_ASAN
const void* outside_stack = nullptr;
std::size_t outside_bytes = 0;
#endif

}  // namespace

StackPool::~StackPool() {
  for (unsigned char* stack : all_) munmap(stack - kGuardBytes, kGuardBytes + kStackBytes);
}

unsigned char* StackPool::Take() {
  if (free_.empty()) {
    void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, kGuardBytes, PROT_NONE);
    all_.push_back(static_cast<unsigned char*>(memory) + kGuardBytes);
    free_.push_back(all_.back());
  }
  unsigned char* stack = free_.back();
  free_.pop_back();
#ifdef EMULATOR_ASAN
  __asan_unpoison_memory_region(stack, kStackBytes);  // what an abandoned fiber left
#endif
  return stack;
}

void Prepare(Fiber& fiber, unsigned char* stack, void (*entry)()) {
  fiber = {};
  fiber.stack = stack;
  auto* top = reinterpret_cast<std::uintptr_t*>(stack + kStackBytes);
#if defined(__x86_64__)
  top -= 8;  // six registers, the address to return to, and none above it
  for (int i = 0; i < 8; ++i) top[i] = 0;
  top[6] = reinterpret_cast<std::uintptr_t>(entry);
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = 0;
  top[11] = reinterpret_cast<std::uintptr_t>(entry);
#endif
  fiber.context = top;
}

void Resume(Fiber& fiber) {
#ifdef EMULATOR_ASAN
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack, kStackBytes);
  flashwok_emulator_switch(&outside, fiber.context);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  flashwok_emulator_switch(&outside, fiber.context);
#endif
}

void Enter() {
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &outside_stack, &outside_bytes);
#endif
}

void Leave(Fiber& fiber, bool forever) {
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(forever ? nullptr : &fiber.sanitizer, outside_stack,
                                 outside_bytes);
  flashwok_emulator_switch(&fiber.context, outside);
  __sanitizer_finish_switch_fiber(fiber.sanitizer, &outside_stack, &outside_bytes);
#else
  static_cast<void>(forever);
  flashwok_emulator_switch(&fiber.context, outside);
#endif
}

}  // namespace flashwok::emulator
