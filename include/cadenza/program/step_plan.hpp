// SPDX-License-Identifier: Apache-2.0
// All that a rank needs to know to run a step, made before the step begins (on a thread of its own,
// while the previous step runs).
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

struct StepPlan {
  data::Batch batch;
  std::vector<TickPlans> ticks;
  Program program;
  std::uint64_t hash = 0;  ///< of all plans: equal on all ranks or the run stops
};

/// Pure and thread-safe. @throws Error(usage) when a placement made an invalid plan.
StepPlan plan_step(const config::Experiment& experiment, const data::Packer& packer, Rank rank,
                   std::int64_t step);

/// Plans of a step for all ranks, without programs (cadenza plan, dry runs).
std::vector<TickPlans> plan_ticks(const config::Experiment& experiment, const data::Batch& batch);

}  // namespace cadenza::program
