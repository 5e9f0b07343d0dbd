// SPDX-License-Identifier: Apache-2.0
#include "app/planner/simulate/simulation.hpp"
#include "app/planner/corpus.hpp"

#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

Simulation::Simulation(const config::Experiment& experiment, const config::Machine& machine,
                       bool progress) {
  const auto corpus = open_corpus(experiment, progress);
  Choice choice = search_layout(experiment, *corpus, machine, progress);
  explanation_ = std::move(choice.explanation);
  decisions_ = std::move(choice.decisions);
  considered_ = std::move(choice.considered);
  steps_.emplace(choice.experiment, data::Packer(*corpus, choice.experiment), machine);
}

}  // namespace cadenza::app
