// SPDX-License-Identifier: Apache-2.0
#include "app/planner/predict/steps.hpp"

namespace cadenza::app {

Steps::Steps(const config::Experiment& experiment, const data::Packer& packer,
             const config::Machine& machine)
    : experiment_(experiment),
      packer_(packer),
      pattern_choice_(experiment.attention.sparse),
      step_shape_(experiment_),
      costs_(machine, experiment_, step_shape_.layout),
      all_ranks_(!simulate::tensor_ranks_alike(experiment_, step_shape_.layout, costs_)) {}

std::size_t Steps::program_of(Rank rank) const {
  return static_cast<std::size_t>(all_ranks_ ? rank : rank / step_shape_.layout.tensor());
}

SimulatedStep Steps::run(std::int64_t step, const simulate::Observer& observer) {
  const data::Batch batch = packer_.batch(step);
  // These may begin with any step: its patterns are those of a run that began with step 0.
  const std::int64_t choice = pattern_choice_.last_choice(step);
  if (pattern_choice_.chooses(step) && choice < step) {
    pattern_choice_.chose(packer_.batch(choice));
  }
  SimulatedStep result{forecast(experiment_, step_shape_, batch, costs_, all_ranks_, observer, {},
                                pattern_choice_.reused(step)),
                       batch};
  if (pattern_choice_.chooses(step)) pattern_choice_.chose(batch);
  held_.resize(result.memory.size());
  for (std::size_t i = 0; i < held_.size(); ++i) {
    held_[i] = exec::larger_of_each(held_[i], result.memory[i]);
  }
  result.memory = held_;
  return result;
}

}  // namespace cadenza::app
