// The machine's own ceilings, in FLOP/s of float32; each takes about 0.2 s.
#pragma once

namespace flashwok {

// Multiply-adds on registers alone.
double MeasureFmaPeak(int threads);

// The micro-kernel on tiles in cache: a product must load its operands, so it cannot reach the
// peak above.
double MeasureGemm(int threads);

}  // namespace flashwok
