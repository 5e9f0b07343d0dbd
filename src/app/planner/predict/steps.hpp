// SPDX-License-Identifier: Apache-2.0
// Steps of an experiment on a machine that need not exist, one after another: planned as a run
// plans them, advanced by the simulator's clock, with the memory that each rank would need.
#pragma once

#include <cstdint>
#include <vector>

#include "app/planner/predict/forecast.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::app {

struct SimulatedStep : Forecast {
  data::Batch batch;
};

class Steps {
 public:
  /// @param experiment  with a layout, a placement and an overlap
  Steps(const config::Experiment& experiment, const data::Packer& packer,
        const config::Machine& machine);

  /// Ranks keep what the steps before made them allocate.
  /// @throws Error(usage) where a placement makes an invalid plan
  SimulatedStep run(std::int64_t step, const simulate::Observer& observer = {});

  const config::Experiment& experiment() const { return experiment_; }
  const program::StepShape& step_shape() const { return step_shape_; }
  const simulate::Costs& costs() const { return costs_; }
  /// Of a step's programs, the one that is the rank's or stands for it.
  std::size_t program_of(Rank rank) const;

 private:
  config::Experiment experiment_;
  data::Packer packer_;
  program::PatternChoice pattern_choice_;
  program::StepShape step_shape_;
  simulate::Costs costs_;
  std::vector<exec::MemoryEstimate> held_;  ///< by program
  bool all_ranks_;                          ///< tensor ranks may differ: each has its own program
};

}  // namespace cadenza::app
