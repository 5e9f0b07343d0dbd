// SPDX-License-Identifier: Apache-2.0
// Seconds of a matrix product by its shape, interpolated in a machine's measured rates.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/config/machine.hpp"

namespace cadenza::cost {

class Curve {
 public:
  void add(double size, double value) {
    const std::pair point{std::log(size), value};
    points_.insert(std::ranges::upper_bound(points_, point), point);
  }
  double smallest() const { return std::exp(points_.front().first); }
  double largest() const { return std::exp(points_.back().first); }

  /// The value at `size`, linear in log(size) and constant beyond the ends. Needs a point.
  double at(double size) const {
    const double x = std::log(size);
    const auto after = std::ranges::upper_bound(points_, x, {}, &std::pair<double, double>::first);
    if (after == points_.begin()) return points_.front().second;
    if (after == points_.end()) return points_.back().second;
    const auto& [x0, y0] = *(after - 1);
    const auto& [x1, y1] = *after;
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  }

 private:
  std::vector<std::pair<double, double>> points_;  ///< ascending
};

// --- A matrix product by its shape, for which machines have rates ---

/// y = x W, dx = dy W or dW += dy x: they differ in how factors are read, and in adding.
enum class ProductKind : std::uint8_t { forward, data_gradient, weight_gradient };

/// [rows, depth] x [depth, columns]; rows of a weight's gradient are the outputs of the layer.
struct Product {
  ProductKind kind = ProductKind::forward;
  double rows = 0;
  double columns = 0;
  double depth = 0;
  double flops() const { return 2.0 * rows * columns * depth; }
  /// Elements of its factors and its result.
  double elements() const { return rows * columns + rows * depth + columns * depth; }
  friend auto operator<=>(const Product&, const Product&) = default;
};

// --- Its time ---

class ProductTime {
 public:
  /// @param element  bytes of a number
  ProductTime(const config::ProductRates& rates, int element);

  double seconds(const Product& product);

  /// Describes the product so far that is farthest from all measured ones, if the distance is above
  /// a factor of two.
  std::vector<std::string> extrapolations() const;

 private:
  /// FLOP/s by rows, for one number of columns and one depth.
  struct Series {
    double columns = 0;
    double depth = 0;
    Curve rates;
  };
  const Series& nearest(const Product& product) const;

  double flops_per_second_;
  double seconds_per_element_;  ///< of factors and result
  std::vector<Series> series_;
  Product farthest_, nearest_to_farthest_;
  double distance_ = 0;
};

}  // namespace cadenza::cost
