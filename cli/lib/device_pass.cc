#include "lib/device_pass.h"

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

void DevicePass::Download() const {
  const cuda::DeviceGuard guard(device_.index);
  Require(guard.status());
  cli::Download(output_.o, host_.o);
  cli::Download(output_.lse, host_.lse);
  cli::Download(output_.row_max, host_.row_max);
  cli::Download(output_.row_sum, host_.row_sum);
}

}  // namespace flashwok::cli
