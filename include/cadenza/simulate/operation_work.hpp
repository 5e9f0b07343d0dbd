// SPDX-License-Identifier: Apache-2.0
// What the operations of src/model do on one rank: their matrix products, and the bytes that all
// else reads and writes.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::simulate {

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

struct OperationWork {
  std::vector<Product> products;
  double bytes = 0;
};

/// Of one rank: widths of its matrices, bytes of its elements.
class OperationShapes {
 public:
  OperationShapes(const config::Experiment& experiment, const program::Layout& layout);

  /// @param rows  tokens of the operation
  OperationWork work(const program::Step& step, Rank rank, std::int64_t rows) const;

 private:
  OperationWork attention_inputs(const program::Step& step, double rows) const;
  OperationWork attention_outputs(const program::Step& step, double rows) const;
  OperationWork attention_inputs_gradient(double rows) const;
  OperationWork attention_outputs_gradient(double rows) const;
  OperationWork loss(double rows) const;
  double owned_elements(Rank rank) const;
  double optimizer_bytes(Rank rank) const;
  double norm_bytes(double rows) const;
  double norm_gradient_bytes(double rows) const;

  config::Model model_;
  config::Recompute recompute_;
  program::Layout layout_;
  bool shards_optimizer_;
  double element_, sum_;  ///< bytes: as stored, as added up
  double width_;
  double queries_, keys_, heads_, ffn_, vocab_;  ///< of one tensor rank
};

/// Elements of the embedding and the head that are on a rank.
double table_elements(const config::Model& model, const program::Layout& layout, Rank rank);

/// The machine's rate for the element-wise part of an operation.
double element_wise_rate(config::ElementWise rates, const program::Step& step);

/// The operation's own rate; null where it has none.
double* rate_of(config::ElementWise& rates, const program::Step& step);

}  // namespace cadenza::simulate
