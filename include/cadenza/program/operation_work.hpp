// SPDX-License-Identifier: Apache-2.0
// What the operations of src/model do on one rank by the model's shape (products, bytes,
// collectives of the tensor group), and how long that takes at a machine's rates.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/collective.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/cost/product_time.hpp"
#include "cadenza/cost/rates.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

using cost::Product;
using cost::ProductKind;

struct OperationWork {
  std::vector<Product> products;
  double bytes = 0;
  double flops() const;  ///< of the products: what traces state
};

/// A collective of the tensor group within an operation.
struct TensorCollective {
  Collective what = Collective::all_gather;
  std::int64_t bytes = 0;  ///< of all of the group together
  friend bool operator==(const TensorCollective&, const TensorCollective&) = default;
};

/// Of one rank: widths of its matrices, bytes of its elements.
class OperationShapes {
 public:
  OperationShapes(const config::Experiment& experiment, const Layout& layout);

  /// Of all but attention's messages and tasks; nothing for what computes nothing.
  /// @param rows  tokens of the operation
  OperationWork work(const Step& step, Rank rank, std::int64_t rows) const;

  /// In the order in which the model asks for them: the executor lets it do nothing else. None
  /// without a tensor group.
  std::vector<TensorCollective> collectives(const Step& step, Rank rank, std::int64_t rows) const;

  /// Of the residual stream that one tensor rank sends on.
  std::int64_t stream_bytes(std::int64_t rows) const;

 private:
  OperationWork attention_inputs(const Step& step, double rows) const;
  OperationWork attention_outputs(const Step& step, double rows) const;
  OperationWork attention_inputs_gradient(double rows) const;
  OperationWork attention_outputs_gradient(double rows) const;
  OperationWork loss(double rows) const;
  double owned_elements(Rank rank) const;
  double optimizer_bytes(Rank rank) const;
  double norm_bytes(double rows) const;
  double norm_gradient_bytes(double rows) const;
  std::int64_t gains(Rank rank) const;

  config::Model model_;
  config::Recompute recompute_;
  config::DeviceKind device_;
  Layout layout_;
  bool shards_optimizer_;
  int element_, sum_;  ///< bytes: as stored, as added up
  double width_;
  double queries_, keys_, heads_, ffn_, vocab_;  ///< of one tensor rank
};

/// Elements of the embedding and the head that are on a rank.
double table_elements(const config::Model& model, const Layout& layout, Rank rank);

// What the operations of a program take at a machine's rates, and what planners know of a machine.

/// Seconds of the products and bytes of an operation.
double seconds_of(const Step& step, const OperationWork& work, const cost::Rates& rates);

/// The operations of a layer outside core attention, both passes.
std::vector<Step> layer_steps(const config::Experiment& experiment);

/// The ranks of pool 0 on a machine, as planners know them: without what is planted in
/// `cluster` to make ranks and links differ (slow ranks and links, faults, jitter).
cost::Pool planning_pool(const config::Experiment& experiment, const config::Machine& machine,
                         const Layout& layout);

// Which of a machine's element-wise rates an operation has.

/// The machine's rate for the element-wise part of an operation, bytes per second.
double element_wise_rate(config::ElementWise rates, const Step& step);

/// The operation's own rate; null where it has none.
double* rate_of(config::ElementWise& rates, const Step& step);

}  // namespace cadenza::program
