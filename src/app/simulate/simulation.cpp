// SPDX-License-Identifier: Apache-2.0
#include "app/simulate/simulation.hpp"

#include "app/experiment_file.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

config::Machine load_machine(const config::Cluster& cluster) {
  if (cluster.machine.empty()) return {};
  const std::string text = read_yaml(
      cluster.machine, "cluster.machine with a machine's YAML file (inputs/machines has some)");
  return config::parse_machine(text, cluster.machine);
}

Simulation::Simulation(const config::Experiment& experiment, const config::Machine& machine,
                       bool progress)
    : experiment_(experiment), pattern_choice_(experiment.attention.sparse) {
  corpus_ = data::open_corpus(experiment_.data, experiment_.model.vocab, experiment_.seed);
  packer_.emplace(*corpus_, experiment_);
  Choice choice = search_layout(experiment_, *packer_, machine, progress);
  experiment_ = std::move(choice.experiment);
  explanation_ = std::move(choice.explanation);
  decisions_ = std::move(choice.decisions);
  considered_ = std::move(choice.considered);
  step_shape_.emplace(experiment_);
  costs_.emplace(machine, experiment_, step_shape_->layout);
  all_ranks_ = !simulate::tensor_ranks_alike(experiment_, step_shape_->layout, *costs_);
}

std::size_t Simulation::program_of(Rank rank) const {
  return static_cast<std::size_t>(all_ranks_ ? rank : rank / step_shape_->layout.tensor());
}

SimulatedStep Simulation::run(std::int64_t step, const simulate::Observer& observer) {
  const data::Batch batch = packer_->batch(step);
  // A simulation may begin with any step: its patterns are those of a run that began with step 0.
  const std::int64_t choice = pattern_choice_.last_choice(step);
  if (pattern_choice_.chooses(step) && choice < step) {
    pattern_choice_.chose(packer_->batch(choice));
  }
  SimulatedStep result{forecast(experiment_, *step_shape_, batch, *costs_, all_ranks_, observer, {},
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
