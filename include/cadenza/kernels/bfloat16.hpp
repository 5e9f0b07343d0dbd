// SPDX-License-Identifier: Apache-2.0
// bfloat16 storage: the upper half of a float32. It is a format, not an arithmetic: kernels read
// it, multiply in hardware that accumulates in float32, and round results to nearest even.
#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace cadenza {

struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  KOKKOS_FUNCTION explicit bfloat16(float value) {
    const auto wide = Kokkos::bit_cast<std::uint32_t>(value);
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    bits = static_cast<std::uint16_t>((nan ? wide | 0x400000u : rounded) >> 16);
  }
  /// Rounds a double once; by way of the nearest float32 it would be rounded twice.
  template <std::same_as<double> Double>
  KOKKOS_FUNCTION explicit bfloat16(Double value) : bfloat16(to_odd(value)) {}
  KOKKOS_FUNCTION explicit operator float() const {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  /// Rounds a double to float32 such that rounding the result further gives the same as rounding
  /// the double: truncates, and sets the last bit if digits were lost ("round to odd"). NaN stays
  /// NaN.
  KOKKOS_FUNCTION static float to_odd(double value) {
    const auto nearest = static_cast<float>(value);
    const auto back = static_cast<double>(nearest);
    if (back == value) return nearest;
    const bool away = (back > value) == (value > 0);  // from 0: `nearest` is larger in magnitude
    const auto wide = Kokkos::bit_cast<std::uint32_t>(nearest);
    return Kokkos::bit_cast<float>((away ? wide - 1 : wide) | 1u);
  }
};
static_assert(sizeof(bfloat16) == 2);

/// Type of sums over values stored as Real: outputs of attention, gradients, statistics, master
/// weights. It is Real itself, except for bfloat16.
template <typename Real>
using Accumulator = std::conditional_t<std::is_same_v<Real, bfloat16>, float, Real>;

namespace kernels {

/// Whether bfloat16 kernels run: host builds on x86-64 processors with AVX2.
bool supports_bfloat16();

}  // namespace kernels
}  // namespace cadenza
