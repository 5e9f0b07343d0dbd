// SPDX-License-Identifier: Apache-2.0
// A matrix product by its shape: what machines have rates for.
#pragma once

#include <compare>
#include <cstdint>

namespace cadenza::cost {

/// y = x W, dx = dy W or dW += dy x: how a library reads the factors, and whether it adds.
enum class ProductKind : std::uint8_t { forward, data_gradient, weight_gradient };

/// [rows, depth] x [depth, columns]; rows of a weight's gradient are the outputs of the layer.
struct Product {
  ProductKind kind = ProductKind::forward;
  double rows = 0;
  double columns = 0;
  double depth = 0;
  double flops() const { return 2.0 * rows * columns * depth; }
  friend auto operator<=>(const Product&, const Product&) = default;
};

}  // namespace cadenza::cost
