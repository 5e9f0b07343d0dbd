// SPDX-License-Identifier: Apache-2.0
// What the operations of real training steps take, from the events that they record.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

struct OperationTime {
  std::string name;  ///< of the event
  Phase phase = Phase::other;
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Runs one step to warm up and `steps` more on `group`, which the experiment's ranks are; ranks of
/// `world` (several groups, or one) begin each step together. Events of the compute lane of this
/// rank, in order. Collective over `world`.
template <typename Real>
std::vector<OperationTime> run_steps(comm::Communicator& world, comm::Communicator& group,
                                     const config::Experiment& experiment, int steps);

/// Median over events of this name and phase, mean over ranks; 0 without any. Collective.
double median_seconds(comm::Communicator& world, const std::vector<OperationTime>& events,
                      const std::string& name, Phase phase);

/// All bytes over all seconds, mean over ranks; 0 without any. Collective.
double bytes_per_second(comm::Communicator& world, const std::vector<OperationTime>& events);

std::vector<OperationTime> named(const std::vector<OperationTime>& events, const std::string& name);

/// Where inputs and results of attention are copied in turns: those of the inputs, or of the
/// results.
std::vector<OperationTime> every_other(const std::vector<OperationTime>& copies, bool inputs);

}  // namespace cadenza::app
