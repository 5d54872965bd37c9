// The leading dimension of every tile.
#pragma once

namespace flashwok::cpu {

// A constant, so that a micro-kernel addresses its rows by displacement, and an odd number of cache
// lines, so that they fall into different sets.
inline constexpr int kTileLd = 272;

}  // namespace flashwok::cpu
