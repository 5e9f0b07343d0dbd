// SPDX-License-Identifier: Apache-2.0
// A measured curve over sizes: straight between points in the logarithm of the size, level beyond.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace cadenza::cost {

class Curve {
 public:
  void add(double size, double value) {
    const std::pair point{std::log(size), value};
    points_.insert(std::ranges::upper_bound(points_, point), point);
  }
  double smallest() const { return std::exp(points_.front().first); }
  double largest() const { return std::exp(points_.back().first); }

  /// Of at least one point.
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

}  // namespace cadenza::cost
