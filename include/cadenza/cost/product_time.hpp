// SPDX-License-Identifier: Apache-2.0
// Seconds of a matrix product by its shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/cost/curve.hpp"
#include "cadenza/cost/product.hpp"

namespace cadenza::cost {

class ProductTime {
 public:
  explicit ProductTime(const config::ProductRates& rates);

  double seconds(const Product& product);

  /// The product so far that lies farthest from all that were measured, beyond a factor of two.
  std::vector<std::string> extrapolations() const;

 private:
  /// FLOP/s by rows.
  struct Series {
    double columns = 0;
    double depth = 0;
    Curve rates;
  };
  const Series& nearest(const Product& product) const;

  double flops_per_second_;
  std::vector<Series> series_;
  Product farthest_, nearest_to_farthest_;
  double distance_ = 0;
};

}  // namespace cadenza::cost
