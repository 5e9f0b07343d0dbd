// SPDX-License-Identifier: Apache-2.0
#include "cadenza/cost/product_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cadenza::cost {
namespace {

double distance(double columns, double depth, const Product& product) {
  return std::hypot(std::log(columns / product.columns), std::log(depth / product.depth));
}

}  // namespace

ProductTime::ProductTime(const config::ProductRates& rates, int element)
    : flops_per_second_(rates.flops_per_second),
      seconds_per_element_(rates.bytes_per_second > 0 ? element / rates.bytes_per_second : 0) {
  for (const auto& [rows, columns, depth, rate] : rates.table) {
    const auto same = [&](const Series& s) { return s.columns == columns && s.depth == depth; };
    auto series = std::ranges::find_if(series_, same);
    if (series == series_.end()) series = series_.insert(series, {columns, depth, {}});
    series->rates.add(rows, rate);
  }
}

const ProductTime::Series& ProductTime::nearest(const Product& product) const {
  return *std::ranges::min_element(
      series_, {}, [&](const Series& s) { return distance(s.columns, s.depth, product); });
}

double ProductTime::seconds(const Product& product) {
  if (product.flops() == 0) return 0;
  if (series_.empty()) {
    return product.flops() / flops_per_second_ + product.elements() * seconds_per_element_;
  }
  const Series& series = nearest(product);
  const double away = distance(series.columns, series.depth, product);
  if (away > std::max(distance_, std::log(2.0))) {
    distance_ = away;
    farthest_ = product;
    nearest_to_farthest_ = {product.kind, 0, series.columns, series.depth};
  }
  return product.flops() / series.rates.at(product.rows);
}

std::vector<std::string> ProductTime::extrapolations() const {
  if (distance_ == 0) return {};
  return {fmt::format("products: {} x {} (columns x depth), nearest measured {} x {}",
                      farthest_.columns, farthest_.depth, nearest_to_farthest_.columns,
                      nearest_to_farthest_.depth)};
}

}  // namespace cadenza::cost
