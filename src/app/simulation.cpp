// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/simulation.hpp"

#include <algorithm>

#include "cadenza/app/choose.hpp"
#include "cadenza/app/experiment_file.hpp"

namespace cadenza::app {
namespace {

/// Whether all tensor ranks of a group do the same at the same time: they do not vary, and each has
/// the neighbours and the adapter that tensor coordinate 0 has.
bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const simulate::Costs& costs) {
  const Rank tensor = layout.tensor();
  if (tensor == 1) return true;
  if (experiment.cluster.varies()) return false;
  if (costs.node_of(0) == costs.node_of(layout.ranks() - 1)) return true;
  for (Rank rank = 1; rank < layout.ranks(); ++rank) {
    const bool first = rank % tensor == 0;
    if (!first && costs.adapter_of(rank) == costs.adapter_of(rank - 1)) return false;
    if (first || rank < tensor) continue;
    const Rank twin = rank - rank % tensor;
    const auto beside = [&](Rank r) { return costs.node_of(r) == costs.node_of(r - tensor); };
    if (beside(rank) != beside(twin)) return false;
  }
  return true;
}

/// What a rank has allocated after two steps: its buffers grow and stay.
exec::MemoryEstimate larger(const exec::MemoryEstimate& a, const exec::MemoryEstimate& b) {
  return {std::max(a.parameters, b.parameters),
          std::max(a.activations, b.activations),
          std::max(a.attention, b.attention),
          std::max(a.communication, b.communication),
          b.gradients,
          b.optimizer};
}

}  // namespace

config::Machine load_machine(const config::Cluster& cluster) {
  if (cluster.machine.empty()) return {};
  const std::string text = read_yaml(
      cluster.machine, "cluster.machine with a machine's YAML file (inputs/machines has some)");
  return config::parse_machine(text, cluster.machine);
}

Simulation::Simulation(const config::Experiment& experiment, const config::Machine& machine)
    : experiment_(experiment) {
  corpus_ = data::open_corpus(experiment_.data, experiment_.model.vocab, experiment_.seed);
  packer_.emplace(*corpus_, experiment_);
  Choice choice = choose_layout(experiment_, *packer_);
  experiment_ = std::move(choice.experiment);
  explanation_ = std::move(choice.explanation);
  outline_.emplace(experiment_);
  costs_.emplace(machine, experiment_, outline_->layout);
  all_ranks_ = !tensor_ranks_alike(experiment_, outline_->layout, *costs_);
}

std::size_t Simulation::program_of(Rank rank) const {
  return static_cast<std::size_t>(all_ranks_ ? rank : rank / outline_->layout.tensor());
}

SimulatedStep Simulation::run(std::int64_t step, const simulate::Observer& observer) {
  const data::Batch batch = packer_->batch(step);
  SimulatedStep result{forecast(experiment_, *outline_, batch, *costs_, all_ranks_, observer),
                       batch};
  held_.resize(result.memory.size());
  for (std::size_t i = 0; i < held_.size(); ++i) held_[i] = larger(held_[i], result.memory[i]);
  result.memory = held_;
  return result;
}

}  // namespace cadenza::app
