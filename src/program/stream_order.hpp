// SPDX-License-Identifier: Apache-2.0
// In which order a stage of a pipeline posts its messages. A device may run one message after the
// other, each until its other end runs too; all ranks therefore follow one order of all messages
// and of all that the units between them post. It is the order in which messages leave if all units
// take equally long: a stage posts a receive when its sender comes to the send, which may be before
// the unit that needs it is next.
#pragma once

#include <compare>
#include <vector>

#include "program/exchange.hpp"

namespace cadenza::program {

/// The place of a message in the order of a pipeline.
struct StreamPlace {
  int time = 0;  ///< units that are over when it leaves
  Pass pass = Pass::forward;
  int edge = 0;  ///< between this stage and the next one
  friend auto operator<=>(const StreamPlace&, const StreamPlace&) = default;
};

struct StreamArrival {
  StreamPlace place;
  MicrobatchPass unit;  ///< that needs it
};

/// Of one stage.
struct StreamOrder {
  std::vector<int> begins;              ///< by unit, in units
  std::vector<StreamArrival> arrivals;  ///< ascending
};

/// Of a stage with neighbours.
StreamOrder order_streams(const StepShape& step_shape, int stage);

/// Of what a unit sends when it is over.
StreamPlace place_of_send(const StepShape& step_shape, int stage, const MicrobatchPass& unit,
                          int begin);

}  // namespace cadenza::program
