// SPDX-License-Identifier: Apache-2.0
// The order in which a stage of a pipeline posts its messages. A device may run messages one after
// another, each until its other end runs too, so all ranks must follow one order of all messages
// and of everything that units post between them. It is the order in which messages leave if all
// units take equally long: a stage posts a receive when its sender reaches the send, which may be
// earlier than the unit that needs it.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/sparse_density.hpp"
#include "cadenza/config/experiment.hpp"
#include "program/exchange.hpp"

namespace cadenza::program {

/// The place of a message in the order of a pipeline.
struct StreamPlace {
  int time = 0;  ///< number of units that have ended when it leaves
  Pass pass = Pass::forward;
  int edge = 0;  ///< between stage `edge` and the next one
  friend auto operator<=>(const StreamPlace&, const StreamPlace&) = default;
};

struct StreamArrival {
  StreamPlace place;
  MicrobatchPass unit;  ///< unit that needs it
};

/// The times and receives of one stage.
struct StreamOrder {
  std::vector<int> begins;              ///< by unit: time at which it begins, in units
  std::vector<StreamArrival> arrivals;  ///< ascending
};

/// The order of a stage that has neighbours.
StreamOrder order_streams(const StepShape& step_shape, int stage);

/// The place of the message that a unit sends when it ends.
/// @param begin  time at which the unit begins
StreamPlace place_of_send(const StepShape& step_shape, int stage, const MicrobatchPass& unit,
                          int begin);

// Classes of layers with plans of their own. A plan balances rows by the pairs that attention
// keeps, which differ between layers; similar layers share a plan.

struct LayerClass {
  std::vector<int> layers;  ///< layers of the model, ascending; empty: all
  bool dense = false;       ///< dense layers of a sparse experiment
};

/// Divides the layers into classes, the dense one first; one class without layers where all share a
/// plan.
/// @param lengths  lengths of a step's documents
std::vector<LayerClass> layer_classes(const config::Experiment& experiment,
                                      std::span<const std::int64_t> lengths,
                                      const SparseEstimate& estimate);

}  // namespace cadenza::program
