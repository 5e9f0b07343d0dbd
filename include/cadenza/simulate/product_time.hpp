// SPDX-License-Identifier: Apache-2.0
// Seconds of a matrix product by its shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/simulate/curve.hpp"

namespace cadenza::simulate {

class ProductTime {
 public:
  explicit ProductTime(const config::ProductRates& rates);

  double seconds(const program::Product& product);

  /// The product so far that lies farthest from all that were measured, beyond a factor of two.
  std::vector<std::string> extrapolations() const;

 private:
  /// FLOP/s by rows.
  struct Series {
    double columns = 0;
    double depth = 0;
    Curve rates;
  };
  const Series& nearest(const program::Product& product) const;

  double flops_per_second_;
  std::vector<Series> series_;
  program::Product farthest_, nearest_to_farthest_;
  double distance_ = 0;
};

}  // namespace cadenza::simulate
