// Figures for people, independent of any locale.
#pragma once

#include <array>
#include <string>

namespace flashwok {

// Three digits in the largest of `units` that leaves at least 1; each is `base` of the one before.
std::string Scaled(double value, double base, const std::array<const char*, 6>& units);

std::string FormatBytes(double bytes);  // "32 MiB"

}  // namespace flashwok
