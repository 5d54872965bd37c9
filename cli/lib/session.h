// One kernel on one workload: its plan, its results, its runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flashwok/attention.h"
#include "io/tensor_file.h"
#include "lib/device_pass.h"
#include "lib/workload.h"

namespace flashwok::cli {

// The tensors that a call writes, filled with NaN until it does.
struct Results {
  io::HostTensor o, lse;
  io::HostTensor row_max, row_sum;   // V1 alone
  io::HostTensor dq, dk, dv, dbias;  // the backward pass alone
  ForwardOutput output;
  Gradients gradients;

  // Name and tensor of each result that a file holds.
  std::vector<std::pair<std::string, const io::HostTensor*>> Named() const;
};

class Session {
 public:
  // The workload must outlive the session; its tensors are copied to another `device` by the first
  // run, which makes the results too.
  Session(const Workload& workload, Algorithm algorithm, const Execution& execution, Pass pass,
          const std::string& out_dtype = "", Device device = {});

  // Of the forward pass, or of the backward pass; not ok: why this kernel cannot run.
  const PlanResult& plan(Pass pass) const {
    return pass == Pass::kForward ? forward_plan_ : backward_plan_;
  }
  const PlanResult& plan() const { return plan(pass_); }
  bool ok() const { return forward_plan_.status.ok() && plan().status.ok(); }
  const Status& status() const {
    return forward_plan_.status.ok() ? plan().status : forward_plan_.status;
  }
  // Why this algorithm cannot run, without the reasons of the others; empty when it can.
  std::string refusal() const;
  Pass pass() const { return pass_; }

  // One call each; returns its seconds, on a CUDA device those of the work there, which no observer
  // sees. Throws when it fails.
  double Forward(Observer* observer = nullptr);
  double Backward(Observer* observer = nullptr);  // after Forward
  // The pass that the session was made for; Run does an unmeasured Forward before a Backward.
  double Run(Observer* observer = nullptr);
  double RunPass(Observer* observer = nullptr) {
    return pass_ == Pass::kForward ? Forward(observer) : Backward(observer);
  }

  // Of a kernel with time stamps, after Forward: DevicePass::Record.
  std::vector<std::byte> Record(const std::vector<int>& blocks, int capacity, double* seconds);

  // Ends the runs: results are on the host from here on, scratch and copies are given back.
  void Finish();

  bool on_cpu() const { return device_.type == DeviceType::kCpu; }
  const Problem& problem() const { return problem_; }  // on the host
  const Results& results() const { return results_; }
  // O, lse and, with the backward pass, the gradients: what a caller must hold.
  double result_bytes() const;
  // What the pass reads and writes by the formulas of io_model; after a run.
  std::int64_t model_bytes() const;

 private:
  void Allocate();
  BackwardInput Input() const;
  void WidenOutputGradient();
  Tensor New(io::HostTensor& slot, const Tensor& like, DType dtype, std::int64_t last = 0) const;
  Execution WithWorkspace(Pass pass, Observer* observer);
  double ForwardOnDevice();

  const Workload& workload_;
  Problem problem_;
  Execution execution_;
  Pass pass_;
  Device device_;
  DType out_dtype_;
  PlanResult forward_plan_, backward_plan_;
  Results results_;
  Tensor dout_;  // in the dtype of O
  io::HostTensor wide_dout_;
  std::vector<std::byte> workspace_;
  std::unique_ptr<DevicePass> device_pass_;  // between the first run and Finish
};

// The middle of the seconds of `repeats` runs after those already done.
struct Timing {
  double median = 0.0, min = 0.0, max = 0.0;
  int repeats = 0;
};
Timing Summarize(std::vector<double> seconds);

}  // namespace flashwok::cli
