// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace cadenza {
namespace {

/// Three digits, or whole where more stand before the point; never an exponent.
std::string short_number(double value) {
  return std::abs(value) >= 100.0 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

template <std::size_t N>
std::string scaled(double value, double factor, const std::array<const char*, N>& units,
                   const char* separator) {
  std::size_t unit = 0;
  // Compared as printed: 1023.9 KiB rounds to a whole MiB.
  while (std::round(std::abs(value)) >= factor && unit + 1 < N) {
    value /= factor;
    ++unit;
  }
  return short_number(value) + separator + units[unit];
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled<6>(bytes, 1024.0, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}, " ");
}

std::string format_count(double count) {
  return scaled<6>(count, 1000.0, {"", "K", "M", "G", "T", "P"}, "");
}

std::string format_duration(double seconds) {
  // Bounds lie where the smaller unit would print as a whole of the larger one.
  if (seconds > 0 && seconds < 0.9995e-3) return short_number(seconds * 1e6) + " us";
  if (seconds < 0.9995) return short_number(seconds * 1e3) + " ms";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace cadenza
