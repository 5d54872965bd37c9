// Whether two views share memory: what one of them writes, the other would see.
#pragma once

#include "flashwok/tensor.h"

namespace flashwok {

// Exact for views that lie beside each other in one buffer, packed gradients among them. Of views
// whose strides are at odds within one range, true where no short search tells them apart. Data may
// be null, which shares nothing.
bool Overlap(const Tensor& a, const Tensor& b);

}  // namespace flashwok
