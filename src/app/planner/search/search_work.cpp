// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/search_work.hpp"

namespace cadenza::app {

double work_of(const StepPlans& tick_plans, double operations) {
  constexpr double kEntry = 20;  // of a plan: made, checked, mirrored, bound to rows
  double entries = 0;
  for (const program::TickPlans& tick : tick_plans) {
    for (const plan::Stage& stage : tick.forward.stages) {
      entries += static_cast<double>(stage.tasks.size() + stage.moves.size());
    }
  }
  return kEntry * entries + operations;
}

double work_of_sample(const config::Experiment& e) {
  constexpr double kWorkOfPair = 3000;  // of ranks of a context group in a microbatch, about
  const config::Parallel& p = e.parallel;
  const auto context = static_cast<double>(p.context);
  const auto stages = static_cast<double>(p.pipeline);
  const bool pools = config::disaggregates(e.attention.placement);
  const double microbatches = 2 * stages;
  return kWorkOfPair * (pools ? 3 : 1) * context * context * stages * microbatches;
}

}  // namespace cadenza::app
