// SPDX-License-Identifier: Apache-2.0
// The passes of microbatches that a rank runs in a step, in order, and the order in which a stage
// of a pipeline posts its messages between them. A device may run messages one at a time, and each
// blocks until its peer runs it: to avoid deadlock, all ranks post in one common order. It is the
// order in which messages leave if all passes take equally long: a stage posts a receive when its
// sender reaches the send, which may be earlier than the pass that needs it.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "cadenza/program/program.hpp"

namespace cadenza::program {

/// A pass of a microbatch through a chunk on a rank; microbatch -1: attention tasks only.
struct MicrobatchPass {
  Pass pass = Pass::forward;
  int tick = 0;
  int microbatch = -1;
  int chunk = 0;
};

/// The passes of a trainer of a stage, or of a dedicated server, in order.
std::vector<MicrobatchPass> microbatch_passes(const StepShape& step_shape, bool trainer, int stage);

/// The place of a message in the order of a pipeline.
struct StreamPlace {
  int time = 0;  ///< when it leaves, counted in passes of microbatches
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

}  // namespace cadenza::program
