// FLASHWOK_EXPORT marks what a shared library shows; everything else is hidden. The build of a
// shared library and its CMake and pkg-config packages define FLASHWOK_SHARED. C and C++.
#pragma once

#if defined(FLASHWOK_SHARED) && defined(__GNUC__)
#define FLASHWOK_EXPORT __attribute__((visibility("default")))
#else
#define FLASHWOK_EXPORT
#endif
