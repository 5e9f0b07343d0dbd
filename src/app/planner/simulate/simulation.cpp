// SPDX-License-Identifier: Apache-2.0
#include "app/planner/simulate/simulation.hpp"

#include "app/planner/experiment_file.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

config::Machine load_machine(const config::Cluster& cluster) {
  if (cluster.machine.empty()) return {};
  const std::string text = read_yaml(
      cluster.machine, "cluster.machine with a machine's YAML file (inputs/machines has some)");
  return config::parse_machine(text, cluster.machine);
}

Simulation::Simulation(const config::Experiment& experiment, const config::Machine& machine,
                       bool progress) {
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  Choice choice = search_layout(experiment, packer, machine, progress);
  explanation_ = std::move(choice.explanation);
  decisions_ = std::move(choice.decisions);
  considered_ = std::move(choice.considered);
  steps_.emplace(choice.experiment, packer, machine);
}

}  // namespace cadenza::app
