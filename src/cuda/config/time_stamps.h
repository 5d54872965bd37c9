// Whether V3 is built with time stamps (CMake: FLASHWOK_TIMESTAMPS).
#pragma once

#include <type_traits>

namespace flashwok::cuda {

#ifdef FLASHWOK_TIMESTAMPS
inline constexpr bool kTimeStamps = true;
#else
inline constexpr bool kTimeStamps = false;
#endif

// The kernel of these traits, but with them.
template <class Traits>
struct WithTimeStamps : Traits {
  static constexpr bool kTimeStamps = true;
};

template <class Traits>
using AsBuilt = std::conditional_t<kTimeStamps, WithTimeStamps<Traits>, Traits>;

}  // namespace flashwok::cuda
