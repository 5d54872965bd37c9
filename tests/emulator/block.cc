#include "block.h"

#include <sstream>
#include <utility>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace flashwok::emulator {
namespace {

constexpr std::uint64_t kMaxIdle = 3'000'000;
Block* here = nullptr;

void PrintLanes(std::ostream& out, std::uint32_t lanes) {
  const auto has = [&](int lane) { return lane < 32 && (lanes >> lane & 1) != 0; };
  const char* comma = "";
  for (int lane = 0; lane < 32; ++lane) {
    if (!has(lane)) continue;
    out << comma << lane;
    comma = ",";
    if (!has(lane + 1)) continue;
    while (has(lane + 1)) ++lane;
    out << '-' << lane;
  }
}

// Apart from Collective, whose stack frame would hold their strings: AddressSanitizer prepares that
// at every call.
[[noreturn, gnu::noinline]] void OutsideMask(const char* what) {
  throw Error(std::string(what) + ": a lane outside its own mask");
}
[[noreturn, gnu::noinline]] void Diverge(int warp, const char* there, const char* what) {
  throw Error("lanes of warp " + std::to_string(warp) + " diverge: " + there + " and " + what);
}
[[gnu::noinline]] Rendezvous& Open(Warp& warp, const char* what, std::uint32_t mask,
                                   CollectiveBody body) {
  warp.pending.push_back({what, body, mask, 0, {}});
  return warp.pending.back();
}

}  // namespace

Block& Here() {
  if (here == nullptr) throw Error("a device instruction outside a kernel");
  return *here;
}

Block::Block(dim3 index, int threads, std::size_t shared_bytes, const std::function<void()>& kernel,
             const Policy& drawn, Random& generator, StackPool& stacks)
    : policy(drawn),
      random(generator),
      shared(shared_bytes),
      warpgroups(static_cast<std::size_t>((threads + 127) / 128)),
      kernel_(kernel),
      stacks_(stacks),
      index_(index),
      threads_(static_cast<std::size_t>(threads)),
      warps_(static_cast<std::size_t>(threads / 32)),
      alive_(threads) {
  for (Thread& thread : threads_) Prepare(thread.fiber, stacks_.Take(), &Block::Main);
  const int registers = std::min(255, 65536 / threads) / 8 * 8;
  register_pool = registers * static_cast<int>(warps_.size());
  for (Warp& warp : warps_) {
    warp.registers = registers;
    warp.rank = static_cast<int>(random.Below(1 << 20));
  }
}

Block::~Block() {
  for (Thread& thread : threads_) stacks_.Give(thread.fiber.stack);
}

void Block::Main() {
  Enter();
  Block& block = *here;
  try {
    block.kernel_();
    block.Finish();
  } catch (const Error& error) {
    std::ostringstream where;
    where << block.Name() << " thread " << block.thread_ << ": " << error.what();
    block.failure_ = std::make_exception_ptr(Error(where.str()));
  } catch (...) {
    block.failure_ = std::current_exception();
  }
  Leave(block.self().fiber, true);
}

void Block::Finish() {
  self().copies.Finish(*this);
  self_warp().alive &= ~(1u << (thread_ % 32));
  --alive_;
  barriers.ThreadLeft(*this);
}

bool Block::Step() {
  here = this;
  blockIdx = {index_.x, index_.y, index_.z};
  struct Reset {
    ~Reset() { here = nullptr; }
  } reset;
  if (alive_ == 0) {
    shared.CheckEnd();
    loads.CheckEnd();
    for (const Warpgroup& group : warpgroups) group.CheckEnd();
    return false;
  }
  const int warp = PickWarp();
  if (warp >= 0) {
    Tick();
    RunWarp(warp);
    const bool spins = idle_ > 1000;  // for what a load may bring
    if (!loads.empty() && (spins || random.Chance(policy.load_step))) loads.RunOne(*this);
  } else if (!loads.empty()) {
    loads.RunOne(*this);
  } else {
    throw Error(Deadlock());
  }
  return true;
}

int Block::PickWarp() {
  const int count = static_cast<int>(warps_.size());
  const int first = policy.turns == Turns::kRandom
                        ? static_cast<int>(random.Below(static_cast<std::uint32_t>(count)))
                        : last_warp_ + 1;
  int picked = -1;
  for (int i = 0; i < count; ++i) {
    const int warp = (first + i) % count;
    const Warp& candidate = warps_[static_cast<std::size_t>(warp)];
    if (candidate.ready == 0) continue;
    if (policy.turns != Turns::kPriority) return warp;
    if (picked < 0 || candidate.rank < warps_[static_cast<std::size_t>(picked)].rank) picked = warp;
  }
  return picked;
}

void Block::RunWarp(int index) {
  Warp& warp = warps_[static_cast<std::size_t>(index)];
  last_warp_ = index;
  const std::uint32_t shift = policy.turns == Turns::kInOrder ? 0 : random.Below(64);
  const std::uint32_t flip = (shift & 32) != 0 ? 31 : 0;
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t lane = ((i + shift) & 31) ^ flip;
    if ((warp.ready >> lane & 1) == 0) continue;
    warp.ready &= ~(1u << lane);
    thread_ = index * 32 + static_cast<int>(lane);
    threadIdx = {static_cast<unsigned>(thread_), 0, 0};
    Resume(self().fiber);
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Block::Suspend(Wait wait) {
  idle_ = 0;
  self().wait = wait;
  for (std::uint32_t left = self_warp().led; left != 0; left &= left - 1) {
    thread(warp() * 32 + std::countr_zero(left)).wait = wait;
  }
  Leave(self().fiber, false);
}

void Block::Wake(int thread) {
  warps_[static_cast<std::size_t>(thread / 32)].ready |= 1u << (thread % 32);
}

void Block::Yield() {
  if (++idle_ > kMaxIdle) throw Error("threads wait in a loop for what does not come");
  Warp& mine = self_warp();
  mine.rank = (1 << 20) + ++last_rank_;
  mine.ready |= 1u << (thread_ % 32);
  Leave(self().fiber, false);
}

void Block::Collective(const char* what, std::uint32_t mask, CollectiveBody body, void* argument) {
  Warp& mine = self_warp();
  const int lane = thread_ % 32;
  if ((mask >> lane & 1) == 0) OutsideMask(what);
  Rendezvous* found = nullptr;
  for (Rendezvous& other : mine.pending) {
    if (other.body == body && other.mask == mask) {
      found = &other;
    } else if ((other.mask >> lane & 1) != 0 && (other.arrived & mask) != 0) {
      Diverge(warp(), other.what, what);  // this lane awaits one there, which awaits this one
    }
  }
  if (found == nullptr) found = &Open(mine, what, mask, body);
  found->arrived |= 1u << lane;
  found->arguments[static_cast<std::size_t>(lane)] = argument;
  if (found->arrived != mask) {
    Suspend({what, 0});
  } else {
    Lead(mine, found);
  }
}

// By the last lane to arrive.
[[gnu::noinline]] void Block::Lead(Warp& mine, Rendezvous* found) {
  const int lane = thread_ % 32;
  const std::uint32_t mask = found->mask;
  const CollectiveBody body = found->body;
  const std::array<void*, 32> arguments = found->arguments;
  mine.pending.erase(mine.pending.begin() + (found - mine.pending.data()));
  mine.led = mask;
  body(arguments.data(), mask);
  mine.led = 0;
  for (int i = 0; i < 32; ++i) {
    if (i != lane && (mask >> i & 1) != 0) Wake(warp() * 32 + i);
  }
}

std::string Block::Deadlock() const {
  std::ostringstream report;
  report << "deadlock in " << Name();
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    std::uint32_t left = warps_[w].alive;
    report << "\n  warp " << w << ':' << (left == 0 ? " done" : "");
    while (left != 0) {
      const Wait& wait = threads_[w * 32 + static_cast<std::size_t>(std::countr_zero(left))].wait;
      std::uint32_t same = 0;
      for (std::size_t lane = 0; lane < 32; ++lane) {
        const Wait& other = threads_[w * 32 + lane].wait;
        if (other.what == wait.what && other.number == wait.number) same |= left & 1u << lane;
      }
      report << " [lanes ";
      PrintLanes(report, same);
      report << ": " << wait.what << ' ' << wait.number << ']';
      left &= ~same;
    }
  }
  return report.str();
}

std::string Block::Name() const {
  std::ostringstream name;
  name << "block (" << index_.x << ", " << index_.y << ", " << index_.z << ')';
  return name.str();
}

}  // namespace flashwok::emulator
