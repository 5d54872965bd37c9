// The plain computation: every step as a matrix in memory in the inputs' own dtype (bfloat16 for
// float8), products summed in float32. What its rounding costs is the yardstick for a kernel's.
#pragma once

#include "reference/reference.h"

namespace flashwok::reference {

ForwardResult PlainForward(const Problem& problem);
BackwardResult PlainBackward(const Problem& problem, const Tensor& dout, const Tensor& dlse = {});

}  // namespace flashwok::reference
