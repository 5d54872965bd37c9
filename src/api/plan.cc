// Plan: a pure function from a problem to the kernel that runs it, its tiles and its scratch, or to
// the reason why none does.
#include "api/plan.h"

#include <algorithm>
#include <span>

#include "api/check.h"
#include "api/validate.h"
#include "common/units.h"
#include "cpu/forward_v3.h"
#include "cpu/parallel_for.h"
#include "cpu/split_kv.h"
#include "cuda/device.h"

namespace flashwok {
namespace {

constexpr int kTileQ = 192;
constexpr int kRowBlock = 12;  // rows of a micro-kernel
constexpr int kKeyBlock = 32;  // keys of a whole block, on every instruction set

template <typename T>
T RoundUpTo(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::string Names(std::span<const DType> dtypes) {
  std::string names;
  for (DType dtype : dtypes) {
    if (!names.empty()) names += ' ';
    names += Name(dtype);
  }
  return names;
}

// Why the kernels of these dtypes do not take the problem, or empty.
std::string DTypeObjection(const Problem& problem, std::span<const DType> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), problem.q.dtype) != dtypes.end()) return {};
  return std::string("q: dtype ") + Name(problem.q.dtype) + " is not one of " + Names(dtypes);
}

// Why the kernel does not take the problem, or empty.
std::string Objection(const cpu::Kernel& kernel, const Problem& problem) {
  if (std::string objection = DTypeObjection(problem, kernel.dtypes); !objection.empty()) {
    return objection;
  }
  if (!cpu::Available(kernel)) {
    return std::string("this machine has no ") + kernel.requirement;
  }
  return {};
}

// Why there is no such CUDA device, or empty.
std::string Absence(const Device& device) {
  if (device.index < cuda::DeviceCount()) return {};
  const std::string absence = cuda::Absence();
  return absence.empty() ? Concat("there is no ", device) : absence;
}

std::string Objection(const cuda::Kernel& kernel, const Layout& layout) {
  const Problem& problem = layout.problem();
  if (std::string objection = DTypeObjection(problem, cuda::DTypes()); !objection.empty()) {
    return objection;
  }
  if (std::string absence = Absence(problem.q.device); !absence.empty()) return absence;
  if (!cuda::Runs(kernel, problem.q.device.index)) {
    return Concat(problem.q.device, " is not a device of ", kernel.requirement);
  }
  return kernel.objection(layout);
}

// The kernel named in the request, of either registry and pass; name null: none was.
struct Wanted {
  const char* name = nullptr;
  Pass pass = Pass::kForward;
  Algorithm algorithm = Algorithm::kAuto;
  DeviceType device = DeviceType::kCpu;
};

Status FindWanted(const Problem& problem, Pass pass, const Execution& execution, Wanted* wanted) {
  const std::string& name = execution.kernel;
  if (name.empty()) return {};
  const auto look = [&](const auto& registry, DeviceType device) {
    for (const auto& kernel : registry) {
      if (kernel.name == name) *wanted = {kernel.name, kernel.pass, kernel.algorithm, device};
    }
  };
  look(cpu::Registry(), DeviceType::kCpu);
  look(cuda::Registry(), DeviceType::kCuda);
  if (wanted->name == nullptr) {
    return Status::Invalid("kernel: '" + name + "' is not in the registry");
  }
  if (wanted->pass == pass && wanted->device != problem.q.device.type) {
    return Status::Invalid(
        Concat("kernel: ", name, " does not run on ", problem.q.device, ", where q is"));
  }
  const Algorithm asked = problem.algorithm;
  if (wanted->pass != pass || asked == Algorithm::kAuto || asked == wanted->algorithm) return {};
  return Status::Invalid(Concat("kernel: ", name, " is of algorithm ", Name(wanted->algorithm),
                                ", but ", Name(asked), " was asked for"));
}

// The first kernel of the pass to which nothing speaks; the others go to the plan's rejections.
template <class Kernel, class Objects>
const Kernel* Pick(std::span<const Kernel> registry, const Problem& problem, Pass pass,
                   const Wanted& wanted, const Objects& objects, bool complete, PlanResult* plan) {
  const Kernel* chosen = nullptr;
  const auto against = [&](const Kernel& kernel) -> std::string {
    if (chosen != nullptr) return "a kernel before it in the order of preference runs";
    if (wanted.name != nullptr && wanted.pass == pass && wanted.name != kernel.name) {
      return std::string("kernel: ") + wanted.name + " was asked for";
    }
    if (problem.algorithm != Algorithm::kAuto && problem.algorithm != kernel.algorithm) {
      return std::string("algorithm: ") + Name(problem.algorithm) + " was asked for";
    }
    return objects(kernel);
  };
  for (const Kernel& kernel : registry) {
    if (kernel.pass != pass) continue;
    const std::string objection = against(kernel);
    if (objection.empty()) {
      chosen = &kernel;
      if (!complete) break;
    } else {
      plan->rejections.push_back({kernel.name, objection});
    }
  }
  return chosen;
}

Status NothingRuns(const PlanResult& plan, Pass pass, const Device& device) {
  std::string message = "no kernel runs this problem";
  if (device.type == DeviceType::kCuda && cuda::Registry().empty()) {
    message += "; q is on " + Concat(device) + ": " + cuda::Absence();
  } else if (plan.rejections.empty()) {
    message += Concat("; the ", Name(pass), " pass has no kernel for ", device);
  }
  for (const Rejection& rejection : plan.rejections) {
    if (!rejection.reason.ends_with(" was asked for")) {
      message += "; " + rejection.kernel + ": " + rejection.reason;
    }
  }
  return Status::Unsupported(message);
}

// All cores, unless waking them takes longer than the work: one for about every 50 us of it.
int WorthwhileThreads(const Layout& layout) {
  constexpr double kWorthwhile = 1e7;  // FLOPs
  const double scores = static_cast<double>(layout.batch) * static_cast<double>(layout.num_heads) *
                        static_cast<double>(layout.max_seqlen_q) *
                        static_cast<double>(layout.max_seqlen_k);
  const double flops = 2.0 * scores * static_cast<double>(layout.head_dim + layout.head_dim_v);
  if (flops < 2.0 * kWorthwhile) return 1;  // the number of cores is a question to the system
  return static_cast<int>(std::min(flops / kWorthwhile, static_cast<double>(HardwareThreads())));
}

// Rows of a Q tile. V2 and V3 fetch K and V once a Q tile, so theirs are larger where every worker
// has several; the size of a tile changes no bit of a row's result.
int TileQ(const Layout& layout, const cpu::Kernel& kernel, int num_threads) {
  if (kernel.pass == Pass::kBackward) return 64;
  if (kernel.algorithm == Algorithm::kV2 || kernel.algorithm == Algorithm::kV3) {
    for (int tile_q : {4 * kTileQ, 2 * kTileQ}) {
      if (cpu::QTiles(layout, tile_q).count() >= 8 * num_threads) return tile_q;
    }
  }
  return kTileQ;
}

// Keys of a KV tile: more of them where they are narrow, and K and V still fit beside the rest.
int TileKV(const Layout& layout, const cpu::Kernel& kernel) {
  if (kernel.pass == Pass::kBackward) return 128;
  const bool small = std::max(layout.head_dim, layout.head_dim_v) <= 64;
  return kernel.products != nullptr || small ? 256 : 128;
}

void SetTiles(const Layout& layout, const Execution& execution, const cpu::Kernel& kernel,
              cpu::Launch* launch) {
  const std::int64_t rows = std::max<std::int64_t>(layout.max_seqlen_q, 1);
  launch->tile_q = static_cast<int>(std::min<std::int64_t>(
      TileQ(layout, kernel, launch->num_threads), RoundUpTo<std::int64_t>(rows, kRowBlock)));
  launch->tile_kv = TileKV(layout, kernel);
  if (execution.tile_q > 0) launch->tile_q = execution.tile_q;
  if (execution.tile_kv > 0) launch->tile_kv = RoundUpTo(execution.tile_kv, kKeyBlock);
}

// How the keys are cut, and whether workers share the pieces.
void SetChunks(const Layout& layout, int num_splits, cpu::Launch* launch) {
  const std::int64_t keys = std::max<std::int64_t>(layout.max_seqlen_k, 1);
  std::int64_t chunk = cpu::kChunk;
  if (num_splits > 0) chunk = CeilDiv(keys, num_splits);
  launch->chunk = RoundUpTo<std::int64_t>(chunk, launch->tile_kv);
  if (cpu::MaxChunks(layout, *launch) < 2) return;
  const std::int64_t tiles = cpu::QTiles(layout, launch->tile_q).count();
  launch->split = num_splits > 1 ||
                  (num_splits == 0 && launch->num_threads > 1 && tiles < 2 * launch->num_threads);
}

// No more workers than have something to do: each takes a worktop of scratch, needed or not.
int UsefulThreads(const Layout& layout, const cpu::Kernel& kernel, const cpu::Launch& launch) {
  const std::int64_t limit = launch.num_threads;
  const auto pieces = [&](std::int64_t a, std::int64_t b) {  // a b, up to the limit
    return std::min(limit, std::min(a, limit) * std::min(b, limit));
  };
  const std::int64_t heads = layout.batch * layout.num_heads;
  const std::int64_t q_tiles = std::min(limit, cpu::QTiles(layout, launch.tile_q).count());
  std::int64_t threads = q_tiles;
  if (kernel.pass == Pass::kBackward) {
    threads = std::max(q_tiles, pieces(heads, CeilDiv(layout.max_seqlen_k, launch.tile_kv)));
  } else if (kernel.algorithm == Algorithm::kV1) {
    threads = std::min(limit, heads);
  } else if (launch.split) {
    threads = pieces(q_tiles, cpu::MaxChunks(layout, launch));
  }
  return static_cast<int>(std::max<std::int64_t>(threads, 1));
}

void PlanCpu(const Problem& problem, const Layout& layout, const Execution& execution,
             Choice* choice) {
  const cpu::Kernel& kernel = *choice->kernel;
  cpu::Launch& launch = choice->launch;
  launch.observer = execution.observer;
  launch.num_threads =
      execution.num_threads > 0 ? execution.num_threads : WorthwhileThreads(layout);
  SetTiles(layout, execution, kernel, &launch);
  SetChunks(layout, problem.num_splits, &launch);
  const bool splits = kernel.pass == Pass::kForward &&
                      (kernel.algorithm == Algorithm::kV2 || kernel.algorithm == Algorithm::kV3);
  launch.split = launch.split && splits;
  launch.num_threads = UsefulThreads(layout, kernel, launch);
  PlanResult& plan = choice->plan;
  plan.kernel = kernel.name;
  plan.algorithm = kernel.algorithm;
  plan.tile_q = launch.tile_q;
  plan.tile_kv = launch.tile_kv;
  plan.num_threads = launch.num_threads;
  plan.num_splits = launch.split ? static_cast<int>(cpu::MaxChunks(layout, launch)) : 1;
  plan.workspace_bytes = kernel.bytes(problem, launch);
}

void PlanCuda(const Layout& layout, Choice* choice) {
  const cuda::Kernel& kernel = *choice->cuda_kernel;
  const cuda::Launch& launch = choice->cuda_launch = kernel.plan(layout);
  PlanResult& plan = choice->plan;
  plan.kernel = kernel.name;
  plan.algorithm = kernel.algorithm;
  plan.tile_q = launch.tile_q;
  plan.tile_kv = launch.tile_kv;
  plan.num_splits = launch.num_splits;
  plan.workspace_bytes = kernel.bytes(layout, launch);
}

}  // namespace

Choice Choose(const Problem& problem, Pass pass, const Execution& execution, bool complete) {
  Choice choice;
  PlanResult& plan = choice.plan;
  Wanted wanted;
  plan.status = Validate(problem, pass);
  if (plan.status.ok()) plan.status = ValidateExecution(execution, problem.q.device);
  if (plan.status.ok()) plan.status = FindWanted(problem, pass, execution, &wanted);
  if (!plan.status.ok()) return choice;
  const Layout layout(problem);
  if (problem.q.device.type == DeviceType::kCpu) {
    const auto objects = [&](const cpu::Kernel& kernel) { return Objection(kernel, problem); };
    choice.kernel = Pick(cpu::Registry(), problem, pass, wanted, objects, complete, &plan);
    if (choice.kernel != nullptr) PlanCpu(problem, layout, execution, &choice);
  } else {
    const auto objects = [&](const cuda::Kernel& kernel) { return Objection(kernel, layout); };
    choice.cuda_kernel = Pick(cuda::Registry(), problem, pass, wanted, objects, complete, &plan);
    if (choice.cuda_kernel != nullptr) PlanCuda(layout, &choice);
  }
  if (choice.kernel == nullptr && choice.cuda_kernel == nullptr) {
    plan.status = NothingRuns(plan, pass, problem.q.device);
  } else if (plan.workspace_bytes > std::min(execution.workspace_limit, cpu::Arena::kTooMuch - 1)) {
    const auto bytes = [](std::size_t count) { return FormatBytes(static_cast<double>(count)); };
    plan.status =
        Status(StatusCode::kOutOfMemory, plan.kernel + " needs " + bytes(plan.workspace_bytes) +
                                             " of scratch memory, above workspace_limit, " +
                                             bytes(execution.workspace_limit));
  }
  return choice;
}

std::string DeviceObjection(const Device& device) {
  const std::string absence = Absence(device);
  if (!absence.empty()) return Concat("is on ", device, ": ", absence);
  if (cuda::HasCode(device.index)) return {};
  return Concat("is on ", device, ", for which this build has no machine code");
}

namespace {

// Standard attention has no tiles of ours: each product takes its operands from slow memory once.
io_model::Tiles ModelTiles(const cuda::Launch& launch, const Problem& problem) {
  constexpr std::int64_t kAll = std::int64_t{1} << 40;
  io_model::Tiles tiles{launch.tile_q, launch.tile_kv};
  if (launch.tile_q == 0) tiles.tile_q = tiles.tile_kv = kAll;
  tiles.strip_rows = tiles.tile_q;
  if (launch.num_splits > 1) tiles.chunk = launch.chunk;
  tiles.score_bytes = ItemSize(problem.q.dtype);
  tiles.partial_scalars = 1;
  return tiles;
}

}  // namespace

io_model::Tiles ModelTiles(const Choice& choice, const Problem& problem) {
  if (choice.cuda_kernel != nullptr) return ModelTiles(choice.cuda_launch, problem);
  const cpu::Launch& launch = choice.launch;
  io_model::Tiles tiles{launch.tile_q, launch.tile_kv};
  tiles.strip_rows = cpu::kStripRows;
  if (choice.plan.algorithm == Algorithm::kV3) {
    tiles.block_rows = choice.kernel->products == nullptr ? cpu::kBlockRows : cpu::kBf16BlockRows;
  }
  if (launch.split) tiles.chunk = launch.chunk;
  return tiles;
}

std::vector<KernelInfo> Kernels() {
  std::vector<KernelInfo> kernels;
  for (const cpu::Kernel& kernel : cpu::Registry()) {
    kernels.push_back({kernel.name, kernel.pass, kernel.algorithm, Device{}, Names(kernel.dtypes),
                       kernel.requirement, cpu::Available(kernel)});
  }
  for (const cuda::Kernel& kernel : cuda::Registry()) {
    kernels.push_back({kernel.name, kernel.pass, kernel.algorithm, Device{DeviceType::kCuda, 0},
                       Names(cuda::DTypes()), kernel.requirement, cuda::Runs(kernel, 0)});
  }
  return kernels;
}

PlanResult Plan(const Problem& problem, Pass pass, const Execution& execution) {
  return Choose(problem, pass, execution).plan;
}

}  // namespace flashwok
