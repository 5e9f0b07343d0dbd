// SPDX-License-Identifier: Apache-2.0
// The work of the operations of src/model on one rank, by the model's shape (products, bytes,
// collectives of the tensor group), and its time at a machine's rates.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/event_context.hpp"
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
  double flops() const;  ///< FLOPs of the products, which traces state
};

/// A collective of the tensor group within an operation.
struct TensorCollective {
  Collective what = Collective::all_gather;
  std::int64_t bytes = 0;  ///< the whole result of an all_gather, else one rank's whole input
  friend bool operator==(const TensorCollective&, const TensorCollective&) = default;
};

/// Collectives that follow one another, and the products that run meanwhile.
struct TensorOverlap {
  std::vector<TensorCollective> collectives;
  std::vector<Product> beside;
};

/// A collective of the tensor group inside an operation, and what it adds to the operation's time.
struct TimedCollective {
  TensorCollective collective;
  double seconds = 0;
};

/// A linear layer, W [outputs, inputs], and its products over rows.
struct Linear {
  double outputs = 0, inputs = 0;
  Product forward(double rows) const;
  Product input_gradient(double rows) const;
  Product weight_gradient(double rows) const;
};

/// Lists overlaps (operation_work.cpp).
class OverlapList;

/// The sizes of one rank's matrices and elements, from which the work of operations follows.
class OperationShapes {
 public:
  OperationShapes(const config::Experiment& experiment, const Layout& layout);

  /// The work of any operation except attention's messages and tasks; empty where it computes
  /// nothing.
  /// @param rows  tokens of the operation
  OperationWork work(const Instruction& instruction, Rank rank, std::int64_t rows) const;

  /// The collectives of an operation, in the order in which the model begins them; the executor
  /// refuses any other. None without a tensor group.
  std::vector<TensorCollective> collectives(const Instruction& instruction, Rank rank,
                                            std::int64_t rows) const;
  /// The same, with what hides them.
  std::vector<TensorOverlap> overlaps(const Instruction& instruction, Rank rank,
                                      std::int64_t rows) const;

  /// Bytes of the residual stream that one tensor rank sends to the next stage.
  std::int64_t stream_bytes(std::int64_t rows) const;
  /// What a layer keeps of so many rows for the backward pass, without what is computed again.
  std::int64_t kept_bytes(std::int64_t rows) const;

 private:
  Linear joined() const { return {queries_ + 2 * keys_, width_}; }
  Linear query() const { return {queries_, width_}; }
  Linear key() const { return {keys_, width_}; }
  Linear output() const { return {width_, queries_}; }
  Linear gate_up() const { return {2 * ffn_, width_}; }
  Linear down() const { return {width_, ffn_}; }
  Linear head() const { return {vocab_, width_}; }

  /// Adds a product of `rows` rows that runs shard by shard.
  template <typename Of>
  void add_by_shard(double rows, Of of, OperationWork& work) const;
  void add_inputs_overlaps(const Instruction& instruction, double rows, OverlapList& to) const;
  void add_outputs_overlaps(const Instruction& instruction, double rows, OverlapList& to) const;
  void add_loss_overlaps(const Instruction& instruction, std::int64_t rows, OverlapList& to) const;

  OperationWork attention_inputs(const Instruction& instruction, double rows) const;
  OperationWork attention_outputs(const Instruction& instruction, double rows) const;
  OperationWork attention_inputs_gradient(double rows) const;
  OperationWork attention_outputs_gradient(double rows) const;
  OperationWork loss(const Instruction& instruction, double rows) const;
  double owned_elements(Rank rank) const;
  double optimizer_bytes(Rank rank) const;
  double norm_bytes(double rows) const;
  double norm_gradient_bytes(double rows) const;
  std::int64_t gains(Rank rank) const;

  config::Model model_;
  config::Recompute recompute_;
  config::DeviceKind device_;
  Layout layout_;
  int sharers_;                       ///< tensor ranks that divide the rows of the residual stream
  std::vector<std::int64_t> layers_;  ///< by pipeline stage
  bool shards_optimizer_;
  int element_, sum_;  ///< bytes of a stored number and of a sum
  int stream_;         ///< bytes of a number of the residual stream
  int part_;           ///< bytes of a number of which tensor ranks sum parts
  int shards_;         ///< pieces in which products run beside collectives
  /// Whether gathered rows that are recomputed are gathered once more for their weights' gradient,
  /// as by all but this program.
  bool gathers_again_;
  double width_;
  double queries_, keys_;       ///< widths of one tensor rank
  double normed_;               ///< of Q and K where they have norms of their own, else 0
  double heads_, ffn_, vocab_;  ///< of one tensor rank
};

/// Elements of the embedding and the head on a rank.
double table_elements(const config::Model& model, const Layout& layout, Rank rank);

// --- Times of operations at a machine's rates, and the machine as planners know it ---

/// Seconds of an operation's products and bytes.
double seconds_of(const Instruction& instruction, const OperationWork& work,
                  const cost::Rates& rates);

/// What the collectives of an operation add to its time. Of those of an overlap, the products
/// beside hide as much as they take themselves, but for the computing that is lost meanwhile
/// (config::Links::compute_share). Where the software does not overlap them, nothing is hidden.
/// @param group  ranks of the tensor group
std::vector<TimedCollective> tensor_times(const std::vector<TensorOverlap>& overlaps,
                                          const std::vector<Rank>& group, const cost::Rates& rates);

/// The operations of a layer outside core attention, both passes.
std::vector<Instruction> layer_instructions(const config::Experiment& experiment);

/// The ranks of pool 0 on a machine, as planners know them: without the differences between ranks
/// and links that `cluster` plants (slow ranks and links, faults, jitter).
cost::Pool planning_pool(const config::Experiment& experiment, const config::Machine& machine,
                         const Layout& layout);

// --- The element-wise rate of an operation ---

/// The machine's rate for the element-wise part of an operation, bytes per second.
double element_wise_rate(config::ElementWise rates, const Instruction& instruction);

/// The operation's own rate among `rates`; null where it has none.
double* rate_of(config::ElementWise& rates, const Instruction& instruction);

}  // namespace cadenza::program
