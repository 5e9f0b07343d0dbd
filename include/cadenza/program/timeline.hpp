// SPDX-License-Identifier: Apache-2.0
// When every rank's operations would run: the programs of a step, advanced by a clock instead of
// executed. An operation starts when the one before it has ended and what it waits for is there.
#pragma once

#include <span>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/plan/cost.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

struct Timeline {
  double seconds = 0;                ///< of the step
  std::vector<double> busy_seconds;  ///< by rank: computing
  /// No step takes less: all computation spread evenly over all ranks, no transfer exposed.
  double lower_bound_seconds = 0;
};

/// @param programs  of all ranks
/// @throws Error(communication) where they deadlock
Timeline predict_step(const config::Experiment& experiment, const Outline& outline,
                      std::span<const Program> programs, std::span<const TickPlans> ticks,
                      const plan::CostModel& model);

}  // namespace cadenza::program
