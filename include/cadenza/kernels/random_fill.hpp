// SPDX-License-Identifier: Apache-2.0
// Random numbers for timed products: on ones or zeros a device draws less power and so runs faster.
#pragma once

#include <cstdint>

#include "cadenza/base/random.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza {

/// Fills `array` with uniform numbers in [-0.5, 0.5); different `stream` give different numbers.
template <typename Real>
void fill_random(const Array<Real>& array, std::uint64_t stream) {
  Real* to = array.data();
  launch(
      "fill_random",
      Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(
          0, static_cast<std::int64_t>(array.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const double value = random_uniform(1, stream, static_cast<std::uint64_t>(i)) - 0.5;
        to[i] = static_cast<Real>(static_cast<float>(value));
      });
}

}  // namespace cadenza
