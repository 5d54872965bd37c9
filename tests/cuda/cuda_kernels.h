// Runs the CUDA kernels that take a problem.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cuda/device_mirror.h"
#include "tests/problem_data.h"

namespace flashwok::test {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << cuda::Absence();
  }
};

// The number in an environment variable, or `otherwise`.
inline int Count(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// A problem with its tensors on the device.
class DeviceProblem {
 public:
  explicit DeviceProblem(ProblemData& data) : data_(data), mirror_(data.memory()) {
    problem = mirror_.On(data.problem);
    output.o = mirror_.On(data.output.o);
    output.lse = mirror_.On(data.output.lse);
    mirror_.Upload();
  }

  Problem problem;
  ForwardOutput output;  // o and lse

  // Those of device 0 that Plan accepts; of them, when FLASHWOK_KERNEL is set, those with that text
  // in their names.
  std::vector<KernelInfo> Kernels(int num_splits = 0) {
    const char* only = std::getenv("FLASHWOK_KERNEL");
    std::vector<KernelInfo> accepted;
    for (const KernelInfo& kernel : flashwok::Kernels()) {
      if (kernel.device.type != DeviceType::kCuda || kernel.pass != Pass::kForward) continue;
      if (only != nullptr && kernel.name.find(only) == std::string::npos) continue;
      const bool splits = kernel.algorithm == Algorithm::kV2 || kernel.algorithm == Algorithm::kV3;
      if (num_splits > 0 && !splits) continue;
      problem.num_splits = num_splits;
      problem.algorithm = kernel.algorithm;
      const PlanResult plan = Plan(problem, Pass::kForward, Named(kernel));
      if (plan.status.code() == StatusCode::kUnsupported) {
        refusal_ = plan.status.message();
        continue;
      }
      Require(plan.status);
      accepted.push_back(kernel);
    }
    return accepted;
  }

  // Why the last kernel that did not take it did not.
  const std::string& refusal() const { return refusal_; }

  // From outputs full of NaN to results on the device.
  void Launch(const KernelInfo& kernel, Execution execution = {}) {
    Refill();
    problem.algorithm = kernel.algorithm;
    execution.kernel = kernel.name;
    Require(Forward(problem, Output(kernel), execution));
    Require(cuda::Synchronize());
  }

  // The same, and everything back to the host.
  void Run(const KernelInfo& kernel) {
    mirror_.Upload();
    Launch(kernel);
    mirror_.Download();
  }

  // Outputs alone, for comparing runs bit by bit.
  std::vector<std::byte> Bits(const KernelInfo& kernel, const Execution& execution = {}) {
    Launch(kernel, execution);
    return Bits();
  }
  std::vector<std::byte> Bits() {
    mirror_.Download(DeviceMirror::Part::kOutputs);
    return mirror_.OutputBytes();
  }

  void Refill() {
    data_.ResetOutputs();
    mirror_.Upload(DeviceMirror::Part::kOutputs);
  }

  // V1 gives its running maximum and sum too.
  ForwardOutput Output(const KernelInfo& kernel) const {
    ForwardOutput all = output;
    if (kernel.algorithm != Algorithm::kV1) return all;
    all.row_max = mirror_.On(data_.row_max);
    all.row_sum = mirror_.On(data_.row_sum);
    return all;
  }

  static Execution Named(const KernelInfo& kernel) {
    Execution execution;
    execution.kernel = kernel.name;
    return execution;
  }

 private:
  ProblemData& data_;
  DeviceMirror mirror_;
  std::string refusal_;
};

}  // namespace flashwok::test
