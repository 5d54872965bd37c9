#include "flashwok/attention.h"

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "api/plan.h"
#include "api/validate.h"
#include "common/softmax_state.h"
#include "cpu/parallel_for.h"
#include "cuda/device.h"
#include "cuda/merge_states.h"

namespace flashwok {
namespace {

struct AlignedDelete {
  void operator()(void* pointer) const {
    ::operator delete (pointer, std::align_val_t{cpu::Arena::kAlign});
  }
};

// The caller's scratch; null when the call must allocate.
Status CallersWorkspace(const PlanResult& plan, const Execution& execution, void** base) {
  *base = execution.workspace;
  if (execution.workspace == nullptr || execution.workspace_bytes >= plan.workspace_bytes)
    return {};
  return Status::Invalid("workspace_bytes: " + std::to_string(execution.workspace_bytes) +
                         " is less than the " + std::to_string(plan.workspace_bytes) + " that " +
                         plan.kernel + " needs");
}

// That, or an allocation that lives as long as the call.
class Workspace {
 public:
  Status Provide(const PlanResult& plan, const Execution& execution, void** base) {
    const std::size_t needed = plan.workspace_bytes;
    Status status = CallersWorkspace(plan, execution, base);
    if (!status.ok() || *base != nullptr) return status;
    owned_.reset(::operator new (needed + cpu::Arena::kAlign, std::align_val_t{cpu::Arena::kAlign},
                                 std::nothrow));
    if (owned_ == nullptr) {
      return {StatusCode::kOutOfMemory, plan.kernel + " could not get " + std::to_string(needed) +
                                            " bytes of scratch memory"};
    }
    *base = owned_.get();
    return {};
  }

 private:
  std::unique_ptr<void, AlignedDelete> owned_;
};

// Runs a CPU kernel unless, or until, the caller's stop says no.
template <typename Kernel>
Status UntilStopped(const Execution& execution, const Kernel& kernel) {
  StopScope scope(execution.stop, execution.stop_data);
  kernel();
  if (scope.stopped()) return {StatusCode::kCancelled, "stopped by the caller"};
  return {};
}

std::int64_t RowOffset(const Tensor& o, std::int64_t b, std::int64_t i, std::int64_t h) {
  return b * o.strides[0] + i * o.strides[1] + h * o.strides[2];
}

float* Address(const Tensor& lse, std::int64_t b, std::int64_t h, std::int64_t i) {
  return static_cast<float*>(lse.data) + b * lse.strides[0] + h * lse.strides[1] +
         i * lse.strides[2];
}

void MergeCpu(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
              const Tensor& o, const Tensor& lse) {
  for (std::int64_t b = 0; b < o.shape[0]; ++b) {
    for (std::int64_t i = 0; i < o.shape[1]; ++i) {
      for (std::int64_t h = 0; h < o.shape[2]; ++h) {
        const MergeWeights weights = Merge(*Address(lse_a, b, h, i), *Address(lse_b, b, h, i));
        // A part without weight is not read.
        const auto element = [&](const Tensor& t, float weight, std::int64_t c) {
          return weight == 0.0f ? 0.0f : LoadAsFloat(t.data, t.dtype, RowOffset(t, b, i, h) + c);
        };
        for (std::int64_t c = 0; c < o.shape[3]; ++c) {
          const float joined = weights.Join(element(o_a, weights.a, c), element(o_b, weights.b, c));
          StoreFromFloat(o.data, o.dtype, RowOffset(o, b, i, h) + c, joined);
        }
        *Address(lse, b, h, i) = weights.lse;
      }
    }
  }
}

// On the problem's device, its scratch allocated and freed in the stream's order.
Status ForwardCuda(const Problem& problem, const ForwardOutput& output, Choice& choice,
                   const Execution& execution) {
  cuda::DeviceGuard guard(problem.q.device.index);
  cuda::Launch& launch = choice.cuda_launch;
  launch.stream = execution.stream;
  Status status = guard.status();
  if (status.ok()) status = CallersWorkspace(choice.plan, execution, &launch.workspace);
  if (!status.ok()) return status;
  void* owned = nullptr;
  if (launch.workspace == nullptr && choice.plan.workspace_bytes > 0) {
    status = cuda::AllocateAsync(choice.plan.workspace_bytes, launch.stream, &owned);
    if (!status.ok()) return status;
    launch.workspace = owned;
  }
  status = choice.cuda_kernel->forward(problem, output, launch);
  Status freed = cuda::FreeAsync(owned, launch.stream);
  return status.ok() ? freed : status;
}

}  // namespace

Status ForwardBytes(const Problem& problem, const ForwardOutput& output, const Execution& execution,
                    std::int64_t* read, std::int64_t* written) {
  const Choice choice = Choose(problem, Pass::kForward, execution);
  Status status = choice.plan.status;
  if (status.ok()) status = ValidateForwardOutput(problem, output);
  if (!status.ok()) return status;
  for (const auto& [name, lengths] : {std::pair{"cu_seqlens_q", &problem.cu_seqlens_q},
                                      std::pair{"cu_seqlens_k", &problem.cu_seqlens_k},
                                      std::pair{"seqused_k", &problem.seqused_k}}) {
    if (!lengths->present() || Readable(*lengths)) continue;
    return {StatusCode::kUnsupported, std::string(name) + ": must hold its lengths on the CPU"};
  }
  const Layout layout(problem);
  const io_model::Traffic traffic =
      io_model::ForwardTraffic(layout, choice.plan.algorithm, ModelTiles(choice, problem), output);
  *read = traffic.bytes_read();
  *written = traffic.bytes_written();
  return {};
}

Status Forward(const Problem& problem, const ForwardOutput& output, const Execution& execution) {
  Choice choice = Choose(problem, Pass::kForward, execution, false);
  Status status = choice.plan.status;
  if (status.ok()) status = ValidateForwardOutput(problem, output);
  if (status.ok()) status = ValidatePointers(problem);
  if (status.ok()) status = ValidatePointers(output);
  if (status.ok()) status = ValidateOverlap(problem, output);
  if (status.ok() && choice.cuda_kernel != nullptr) {
    return ForwardCuda(problem, output, choice, execution);
  }
  Workspace workspace;
  if (status.ok()) status = workspace.Provide(choice.plan, execution, &choice.launch.workspace);
  if (status.ok()) {
    status =
        UntilStopped(execution, [&] { choice.kernel->forward(problem, output, choice.launch); });
  }
  return status;
}

Status Backward(const Problem& problem, const BackwardInput& input, const Gradients& gradients,
                const Execution& execution) {
  Choice choice = Choose(problem, Pass::kBackward, execution, false);
  Status status = choice.plan.status;
  if (status.ok()) status = ValidateBackward(problem, input, gradients);
  if (status.ok()) status = ValidatePointers(problem);
  if (status.ok()) status = ValidatePointers(input, gradients);
  if (status.ok()) status = ValidateOverlap(problem, input, gradients);
  Workspace workspace;
  if (status.ok()) status = workspace.Provide(choice.plan, execution, &choice.launch.workspace);
  if (status.ok()) {
    status = UntilStopped(
        execution, [&] { choice.kernel->backward(problem, input, gradients, choice.launch); });
  }
  return status;
}

Status ForwardBackward(const Problem& problem, const ForwardOutput& output, const Tensor& dout,
                       const Gradients& gradients, const Execution& execution) {
  BackwardInput input;
  input.o = output.o;
  input.lse = output.lse;
  input.dout = dout;
  input.row_max = output.row_max;
  input.row_sum = output.row_sum;
  // Everything that the backward pass would refuse, before the forward pass writes.
  Status status = Plan(problem, Pass::kBackward, execution).status;
  if (status.ok()) status = ValidateBackward(problem, input, gradients);
  if (status.ok()) status = ValidatePointers(input, gradients);
  if (status.ok()) status = ValidateOverlap(problem, input, gradients);
  if (status.ok()) status = ValidateOverlap(problem, output, dout);
  if (status.ok()) status = Forward(problem, output, execution);
  if (status.ok()) status = Backward(problem, input, gradients, execution);
  return status;
}

Status MergeStates(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                   const Tensor& o, const Tensor& lse, const Execution& execution) {
  Status status = ValidateMerge(o_a, lse_a, o_b, lse_b, o, lse);
  if (status.ok()) status = ValidateExecution(execution, o_a.device);
  if (!status.ok()) return status;
  if (o.device.type == DeviceType::kCpu) {
    MergeCpu(o_a, lse_a, o_b, lse_b, o, lse);
    return {};
  }
  if (std::string objection = DeviceObjection(o.device); !objection.empty()) {
    return Status::Unsupported("o_a: " + objection);
  }
  cuda::DeviceGuard guard(o.device.index);
  if (!guard.status().ok()) return guard.status();
  return cuda::MergeStates(o_a, lse_a, o_b, lse_b, o, lse, execution.stream);
}

const char* Version() { return FLASHWOK_VERSION; }

}  // namespace flashwok
