// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/step_plan.hpp"

#include "cadenza/base/hash.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/validate.hpp"

namespace cadenza::program {

std::vector<TickPlans> plan_ticks(const config::Experiment& experiment, const data::Batch& batch) {
  const auto microbatches = static_cast<std::int64_t>(batch.microbatches.size());
  const int ticks = static_cast<int>(microbatches / experiment.parallel.data);
  std::vector<TickPlans> plans;
  for (int tick = 0; tick < ticks; ++tick) {
    const plan::Workload workload = plan::make_workload(experiment, batch, tick);
    plan::Plan forward = plan::make_plan(experiment.attention, workload);
    plan::Plan backward = plan::mirror(forward);
    plan::require_valid(forward, backward);
    plans.push_back({std::move(forward), std::move(backward)});
  }
  return plans;
}

StepPlan plan_step(const config::Experiment& experiment, const data::Packer& packer, Rank rank,
                   std::int64_t step) {
  StepPlan result;
  result.batch = packer.batch(step);
  result.ticks = plan_ticks(experiment, result.batch);
  result.program = make_program(rank, static_cast<int>(experiment.parallel.trainers()),
                                static_cast<int>(experiment.model.layers), result.ticks);
  Hasher hasher;
  for (const TickPlans& tick : result.ticks) {
    hasher.add(plan::hash(tick.forward)).add(plan::hash(tick.backward));
  }
  result.hash = hasher.value();
  return result;
}

}  // namespace cadenza::program
