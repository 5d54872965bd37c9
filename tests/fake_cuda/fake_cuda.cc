// Stands in for src/cuda: two devices whose memory lies far from every host address, so that the
// host cannot use it by mistake, and kernels that are the CPU's. Every run takes 2 ms.
// FLASHWOK_FAKE_CUDA: absent, full, copy_fails, kernel_fails, or stamps: then V3 is as built with
// time stamps, and is the CUDA kernel on the emulator when they are recorded.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "cuda/attention/stamp_log.h"
#include "cuda/device.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/merge_states.h"
#include "cuda/registry.h"
#ifdef FLASHWOK_EMULATOR
#include "tests/emulator/emulated_v3.h"
#endif

namespace flashwok::cuda {
namespace {

constexpr int kDevices = 2;
constexpr std::size_t kWorkspace = 4096;

bool Set(const char* what) {
  const char* text = std::getenv("FLASHWOK_FAKE_CUDA");
  return text != nullptr && std::strcmp(text, what) == 0;
}

Status Fails(const char* what) { return {StatusCode::kInternal, what}; }

struct Block {
  int device = 0;
  std::vector<std::byte> bytes;
};

// All blocks by their device addresses; what is left at the end was never freed.
struct Memory {
  std::map<std::uintptr_t, Block> blocks;
  std::uintptr_t next = std::uintptr_t{1} << 56;
  int current = 0;
  bool failed = false;

  ~Memory() {
    if (blocks.empty() && current == 0) return;
    (void)std::fprintf(stderr, "fake CUDA: %zu blocks are left, device %d is current\n",
                       blocks.size(), current);
    std::_Exit(70);
  }

  // The host's bytes behind a device address, or null unless `bytes` of one block lie there.
  std::byte* Find(const void* pointer, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto block = blocks.upper_bound(address);
    if (block == blocks.begin()) return nullptr;
    --block;
    const std::size_t offset = address - block->first;
    const bool inside = block->second.device == current && offset <= block->second.bytes.size() &&
                        bytes <= block->second.bytes.size() - offset;
    return inside ? block->second.bytes.data() + offset : nullptr;
  }
};
Memory memory;

// The tensor where the CPU can read it.
bool Bring(Tensor* tensor) {
  if (!tensor->present() || tensor->num_elements() == 0) {
    tensor->device = {};
    return true;
  }
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    last += (tensor->shape[axis] - 1) * tensor->strides[axis];
  }
  const std::int64_t bytes = (last + 1) * ItemSize(tensor->dtype);
  const bool here = tensor->device == Device{DeviceType::kCuda, memory.current};
  tensor->data = memory.Find(tensor->data, static_cast<std::size_t>(bytes));
  tensor->device = {};
  return here && tensor->data != nullptr;
}

Status OnEmulator(const Problem& problem, const ForwardOutput& output, StampLog* stamps) {
#ifdef FLASHWOK_EMULATOR
  const std::byte* head = memory.Find(stamps, sizeof(StampLog));
  if (head == nullptr) return Fails("no log is there");
  const auto& log = *reinterpret_cast<const StampLog*>(head);
  std::byte* all = memory.Find(stamps, StampLog::Bytes(log.num_blocks, log.capacity));
  if (all == nullptr) return Fails("the log is too small");
  test::RunEmulatedV3(problem, output,
                      {.row = ForwardV3RowOf(Layout(problem)),
                       .seed = 5,
                       .time_stamps = true,
                       .stamps = reinterpret_cast<StampLog*>(all)});
  return {};
#else
  (void)problem, (void)output, (void)stamps;
  return Fails("there is no emulator");
#endif
}

template <Algorithm kAlgorithm>
Status OnCpu(const Problem& problem, const ForwardOutput& output, const Launch& launch) {
  if (Set("kernel_fails")) {
    memory.failed = true;
    return {};
  }
  if (memory.Find(launch.workspace, kWorkspace) == nullptr) return Fails("no workspace is there");
  Problem p = problem;
  ForwardOutput out = output;
  for (Tensor* tensor :
       {&p.q, &p.k, &p.v, &p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_k, &p.page_table, &p.bias,
        &p.mask, &p.alibi_slopes, &p.q_descale, &p.k_descale, &p.v_descale, &out.o, &out.lse,
        &out.row_max, &out.row_sum}) {
    if (!Bring(tensor)) return Fails("a tensor is not there");
  }
  p.algorithm = kAlgorithm;
  if (launch.stamps != nullptr) return OnEmulator(p, out, launch.stamps);
  return flashwok::Forward(p, out);
}

std::string Objection(const Layout& layout) {
  return layout.head_dim % 8 == 0 ? "" : "head_dim: must be a multiple of 8";
}
Launch PlanTiles(const Layout& layout) {
  Launch launch;
  launch.tile_q = Set("stamps") ? ForwardV3ConfigOf(layout).tile_q() : 128;
  launch.tile_kv = Set("stamps") ? ForwardV3ConfigOf(layout).tile_kv : 64;
  return launch;
}
Launch PlanNoTiles(const Layout&) { return {}; }  // as standard attention's
std::size_t Bytes(const Layout&, const Launch&) { return kWorkspace; }

template <Algorithm kAlgorithm>
constexpr Kernel Row(const char* name) {
  constexpr auto kPlan = kAlgorithm == Algorithm::kStandard ? PlanNoTiles : PlanTiles;
  return {name,  Pass::kForward, kAlgorithm,        90,   true, "compute capability 9.0", Objection,
          kPlan, Bytes,          OnCpu<kAlgorithm>, false};
}

constexpr Kernel kKernels[] = {
    Row<Algorithm::kV3>("cuda_forward_v3"), Row<Algorithm::kV2>("cuda_forward_v2"),
    Row<Algorithm::kV1>("cuda_forward_v1"), Row<Algorithm::kStandard>("cuda_forward_standard")};

constexpr Kernel WithStamps(Kernel kernel) {
  kernel.time_stamps = true;
  return kernel;
}
constexpr Kernel kStamped[] = {WithStamps(kKernels[0]), kKernels[1], kKernels[2], kKernels[3]};

}  // namespace

bool HasCode(int device) { return device < DeviceCount(); }
bool Runs(const Kernel&, int device) { return HasCode(device); }
std::span<const DType> DTypes() {
  static constexpr DType kBoth[] = {DType::kFloat16, DType::kBFloat16};
  return kBoth;
}
std::span<const Kernel> Registry() {
  return Set("stamps") ? std::span<const Kernel>(kStamped) : kKernels;
}

Status MergeStates(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, void*) {
  return Fails("the command line merges nothing");
}

int DeviceCount() { return Set("absent") ? 0 : kDevices; }
std::string DeviceName(int) { return "Fake GPU"; }
int Architecture(int device) { return device < DeviceCount() ? 90 : 0; }
std::string Absence() { return Set("absent") ? "the driver is too old" : ""; }

DeviceGuard::DeviceGuard(int device) : before_(std::exchange(memory.current, device)) {}
DeviceGuard::~DeviceGuard() { memory.current = before_; }

Status AllocateAsync(std::size_t, void*, void**) { return Fails("a workspace was not given"); }
Status FreeAsync(void* pointer, void*) { return pointer == nullptr ? Status() : Fails("free"); }

Status Allocate(std::size_t bytes, void** pointer) {
  if (Set("full")) return {StatusCode::kOutOfMemory, "cudaMalloc: out of memory"};
  memory.blocks[memory.next] = {memory.current, std::vector<std::byte>(bytes, std::byte{0xAA})};
  *pointer = reinterpret_cast<void*>(memory.next);
  memory.next += (bytes / 256 + 2) * 256;  // aligned as a device's memory is, with a gap
  return {};
}
void Free(void* pointer) { memory.blocks.erase(reinterpret_cast<std::uintptr_t>(pointer)); }

Status CopyToDevice(void* device, const void* host, std::size_t bytes) {
  std::byte* to = memory.Find(device, bytes);
  if (to == nullptr) return Fails("cudaMemcpy: invalid argument");
  std::memcpy(to, host, bytes);
  return {};
}
Status CopyToHost(void* host, const void* device, std::size_t bytes) {
  const std::byte* from = memory.Find(device, bytes);
  if (from == nullptr || Set("copy_fails")) return Fails("cudaMemcpy: invalid argument");
  std::memcpy(host, from, bytes);
  return {};
}
Status Synchronize() {
  return memory.failed ? Fails("cudaDeviceSynchronize: an illegal memory access") : Status();
}

Stopwatch::Stopwatch() = default;
Stopwatch::~Stopwatch() = default;
void Stopwatch::Start() { begin_ = this; }
double Stopwatch::Stop() { return begin_ == this ? 2e-3 : 0.0; }

}  // namespace flashwok::cuda
