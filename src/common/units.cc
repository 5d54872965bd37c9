#include "common/units.h"

#include <cmath>
#include <cstddef>

namespace flashwok {

std::string Scaled(double value, double base, const std::array<const char*, 6>& units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base * 0.9995 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  const double magnitude = std::abs(value);
  const bool whole = unit == 0 || magnitude >= 99.95 || value == std::floor(value);
  const int digits = whole ? 0 : magnitude >= 9.995 ? 1 : 2;
  const long long scale = digits == 0 ? 1 : digits == 1 ? 10 : 100;
  const long long parts = std::llround(magnitude * static_cast<double>(scale));
  std::string text(value < 0.0 ? "-" : "");
  text += std::to_string(parts / scale);
  if (digits > 0) text.append(1, '.').append(std::to_string(scale + parts % scale), 1, digits);
  return text.append(1, ' ').append(units[unit]);
}

std::string FormatBytes(double bytes) {
  return Scaled(bytes, 1024.0, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

}  // namespace flashwok
