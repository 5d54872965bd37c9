#include "cuda/merge_states.h"

#include "cuda/check.h"
#include "cuda/instances/merge_states.h"

namespace flashwok::cuda {

Status MergeStates(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                   const Tensor& o, const Tensor& lse, void* stream) {
  const MergeParams params = MakeMergeParams(o_a, lse_a, o_b, lse_b, o, lse);
  return FromCuda(LaunchMergeStates(params, static_cast<cudaStream_t>(stream)),
                  "cuda_merge_states");
}

}  // namespace flashwok::cuda
