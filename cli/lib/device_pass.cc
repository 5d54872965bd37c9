#include "lib/device_pass.h"

#include <algorithm>

#include "api/plan.h"
#include "cuda/attention/stamp_log.h"
#include "cuda/device.h"
#include "lib/command.h"

namespace flashwok::cli {

DevicePass::DevicePass(Device device, const Problem& problem, const ForwardOutput& output,
                       std::size_t workspace_bytes)
    : device_(device),
      host_(output),
      memory_(device),
      problem_(problem),
      output_(output),
      workspace_bytes_(workspace_bytes) {
  const cuda::DeviceGuard guard(device_.index);
  Require(guard.status());
  for (Tensor* tensor : TensorsOf(problem_)) *tensor = memory_.Upload(*tensor);
  for (Tensor* tensor : {&output_.o, &output_.lse, &output_.row_max, &output_.row_sum}) {
    *tensor = memory_.Upload(*tensor);
  }
  workspace_ = memory_.Allocate(workspace_bytes);
}

Status DevicePass::Forward(Execution execution, double* seconds) {
  const cuda::DeviceGuard guard(device_.index);
  if (!guard.status().ok()) return guard.status();
  execution.workspace = workspace_;
  execution.workspace_bytes = workspace_bytes_;
  cuda::Stopwatch stopwatch;
  stopwatch.Start();
  const Status status = flashwok::Forward(problem_, output_, execution);
  *seconds = stopwatch.Stop();
  return status.ok() ? cuda::Synchronize() : status;  // which tells a kernel's own failure
}

std::vector<std::byte> DevicePass::Record(const Execution& execution,
                                          const std::vector<int>& blocks, int capacity,
                                          double* seconds) {
  const cuda::DeviceGuard guard(device_.index);
  Require(guard.status());
  cuda::StampLog head;
  head.num_blocks = static_cast<std::uint32_t>(blocks.size());
  head.capacity = static_cast<std::uint32_t>(capacity);
  std::copy(blocks.begin(), blocks.end(), head.blocks);
  std::vector<std::byte> log(cuda::StampLog::Bytes(head.num_blocks, head.capacity));
  void* on_device = memory_.Allocate(log.size());
  Require(cuda::CopyToDevice(on_device, &head, sizeof(head)));
  Choice choice = Choose(problem_, Pass::kForward, execution);
  Require(choice.plan.status);
  choice.cuda_launch.workspace = workspace_;
  choice.cuda_launch.stamps = static_cast<cuda::StampLog*>(on_device);
  cuda::Stopwatch stopwatch;
  stopwatch.Start();
  const Status status = choice.cuda_kernel->forward(problem_, output_, choice.cuda_launch);
  *seconds = stopwatch.Stop();
  Require(status);
  Require(cuda::Synchronize());
  Require(cuda::CopyToHost(log.data(), on_device, log.size()));
  return log;
}

void DevicePass::Download() const {
  const cuda::DeviceGuard guard(device_.index);
  Require(guard.status());
  cli::Download(output_.o, host_.o);
  cli::Download(output_.lse, host_.lse);
  cli::Download(output_.row_max, host_.row_max);
  cli::Download(output_.row_sum, host_.row_sum);
}

}  // namespace flashwok::cli
