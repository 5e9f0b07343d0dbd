// SPDX-License-Identifier: Apache-2.0
// The peak of matrix products: what utilization is a share of.
#pragma once

#include <cstdint>
#include <functional>

namespace cadenza::app {

/// [rows, size] x [size, size].
struct PeakProduct {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  constexpr double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(size) * static_cast<double>(size);
  }
};

/// The highest rate, in FLOP/s, of products of growing size, each made several times. Where other
/// programs want the processor too, a long product is interrupted and looks slow, and a short one
/// is not; on a device a short one is mostly its start. Whichever is fastest counts. Takes about a
/// tenth of a second, or as long as three of the smallest products.
/// @param seconds  makes a product and times it
double peak_rate(const std::function<double(const PeakProduct&)>& seconds);

}  // namespace cadenza::app
