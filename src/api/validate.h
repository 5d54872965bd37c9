// Every precondition of a call. A message names the argument, its value and the limit.
#pragma once

#include "flashwok/attention.h"

namespace flashwok {

constexpr std::int64_t kMaxLength = 0x7FFFFFFF;  // of a sequence, and of batch * num_heads
constexpr std::int64_t kMaxHeadDim = 256;
constexpr int kMaxSplits = 256;
constexpr int kMaxThreads = 4096;
constexpr int kMaxTileQ = 1024;
constexpr int kMaxTileKV = 256;

// Shapes, strides, dtypes and options, independent of any kernel. Null data are allowed; the
// contents of cu_seqlens and seqused_k are checked where they are given.
Status Validate(const Problem& problem, Pass pass);

// These take a problem that Validate has accepted.
Status ValidateForwardOutput(const Problem& problem, const ForwardOutput& output);
Status ValidateBackward(const Problem& problem, const BackwardInput& input,
                        const Gradients& gradients);

Status ValidateExecution(const Execution& execution, Device device);
Status ValidateMerge(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                     const Tensor& o, const Tensor& lse);
Status ValidateQuantize(const Tensor& x, const Tensor& values, const Tensor& descale);

// Before memory is touched: no tensor with elements has null data, and every page number that the
// lengths make use of exists. For arguments that the functions above have accepted.
Status ValidatePointers(const Problem& problem);
Status ValidatePointers(const ForwardOutput& output);
Status ValidatePointers(const BackwardInput& input, const Gradients& gradients);

// After those: no output shares memory with an input or with another output. `dout`: of a backward
// pass that follows; may be absent.
Status ValidateOverlap(const Problem& problem, const ForwardOutput& output,
                       const Tensor& dout = {});
Status ValidateOverlap(const Problem& problem, const BackwardInput& input,
                       const Gradients& gradients);

}  // namespace flashwok
