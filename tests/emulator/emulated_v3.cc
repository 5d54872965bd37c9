#include "tests/emulator/emulated_v3.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/config/time_stamps.h"
#include "cuda/forward_v3_setup.h"
#include "cuda/kernels/forward_v3.cuh"
#include "tests/emulator/emulator.h"

namespace flashwok::test {
namespace {

Status Encode(const cuda::TensorMapRequest& request, cuda::ptx::TensorMap* map) {
  emulator::EncodeTiled(map, 2, request.base, request.sizes, request.strides, request.box,
                        request.swizzle);
  return {};
}

template <class Traits>
void RunKernel(const cuda::ForwardV3Params& params, const EmulatedV3& how) {
  const std::uint32_t tiles = params.schedule.total();
  const auto most = static_cast<std::uint32_t>(how.blocks);
  emulator::Launch(dim3(tiles < most ? tiles : most), Traits::kThreads,
                   sizeof(cuda::ForwardV3Storage<Traits>), [&] { cuda::ForwardV3<Traits>(params); },
                   {.seed = how.seed, .resident_blocks = how.resident_blocks});
}

template <DType kType, bool kSoftcap, int kRow = 0>
void RunRow(const cuda::ForwardV3Params& params, const EmulatedV3& how) {
  if constexpr (kRow < cuda::kForwardV3Rows) {
    if (how.row != kRow) return RunRow<kType, kSoftcap, kRow + 1>(params, how);
    constexpr cuda::ForwardV3Config kPlain = cuda::kForwardV3Configs[kRow];
    constexpr cuda::ForwardV3Config kConfig = kSoftcap ? cuda::WithSoftcap(kPlain) : kPlain;
    using Traits = cuda::ForwardV3Traits<kType, kConfig, kSoftcap>;
    if (!how.time_stamps) return RunKernel<Traits>(params, how);
    if constexpr (kType == DType::kBFloat16 && !kSoftcap) {
      return RunKernel<cuda::WithTimeStamps<Traits>>(params, how);
    }
  }
  throw std::invalid_argument("no such emulated kernel");
}

}  // namespace

void RunEmulatedV3(const Problem& problem, const ForwardOutput& output, const EmulatedV3& how) {
  const flashwok::Layout layout(problem);
  const bool softcap = problem.softcap > 0.0;
  const cuda::ForwardV3Config& plain = cuda::kForwardV3Configs[how.row];
  const cuda::ForwardV3Config config = softcap ? cuda::WithSoftcap(plain) : plain;
  std::vector<std::byte> scratch(cuda::ForwardV3Scratch(layout, config), std::byte{0xFF});
  cuda::ForwardV3Params params;
  const Status made =
      cuda::MakeForwardV3Params(layout, config, output, scratch.data(), Encode, &params);
  if (!made.ok()) throw std::invalid_argument(made.message());
  if (params.schedule.total() == 0) return;
  params.stamps = how.stamps;
  if (problem.q.dtype == DType::kBFloat16) {
    softcap ? RunRow<DType::kBFloat16, true>(params, how)
            : RunRow<DType::kBFloat16, false>(params, how);
  } else {
    softcap ? RunRow<DType::kFloat16, true>(params, how)
            : RunRow<DType::kFloat16, false>(params, how);
  }
  // A graph replays the launch: what the counter holds must not be taken for its own.
  if (params.counter.word != nullptr && *params.counter.word != 0) {
    throw std::logic_error("the counter is left as " + std::to_string(*params.counter.word));
  }
}

}  // namespace flashwok::test
