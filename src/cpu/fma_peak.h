// The machine's own ceiling.
#pragma once

namespace flashwok {

// FLOP/s of float32 multiply-adds on registers alone, by `threads` threads for about 0.2 s.
double MeasureFmaPeak(int threads);

}  // namespace flashwok
