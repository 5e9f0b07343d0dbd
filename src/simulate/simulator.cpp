// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/simulator.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "cadenza/base/error.hpp"
#include "simulate/clock.hpp"

namespace cadenza::simulate {

std::vector<double> begins(const config::Experiment& experiment, std::int64_t step) {
  std::vector<double> begins(static_cast<std::size_t>(experiment.ranks()), 0.0);
  for (const config::Fault& fault : experiment.cluster.faults) {
    if (fault.steps.empty() || std::ranges::count(fault.steps, step) > 0) {
      begins[static_cast<std::size_t>(fault.rank)] += fault.between;
    }
  }
  return begins;
}

Result simulate(const config::Experiment& experiment, const program::StepShape& step_shape,
                std::span<const program::Program> programs,
                std::span<const program::TickPlans> tick_plans, const Costs& costs,
                const Observer& observer, std::int64_t step) {
  Clock clock(experiment, step_shape, programs, tick_plans, costs, observer, step);
  clock.run();
  const std::vector<std::string> faults = clock.faults();
  if (!faults.empty()) fail(ExitCode::communication, "programs deadlock: {}", faults.front());
  return clock.result();
}

std::vector<std::string> faults(const config::Experiment& experiment,
                                const program::StepShape& step_shape,
                                std::span<const program::Program> programs,
                                std::span<const program::TickPlans> tick_plans) {
  const Costs costs(config::Machine{}, experiment, step_shape.layout);
  const Observer nobody;
  Clock clock(experiment, step_shape, programs, tick_plans, costs, nobody, 0);
  clock.run();
  return clock.faults();
}

namespace {

/// Whether what varies is the same for all ranks of every tensor group: such ranks are slow
/// together.
bool varies_within_groups(config::Cluster cluster, Rank tensor) {
  std::map<Rank, std::vector<double>> slow;  // by group
  for (const auto& [rank, share] : cluster.slow_ranks) {
    slow[static_cast<Rank>(rank) / tensor].push_back(share);
  }
  cluster.slow_ranks.clear();
  return cluster.varies() || std::ranges::any_of(slow, [&](const auto& group) {
           const std::vector<double>& shares = group.second;
           return std::ssize(shares) != tensor ||
                  std::ranges::count(shares, shares.front()) != tensor;
         });
}

}  // namespace

bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const Costs& costs) {
  const Rank tensor = layout.tensor();
  if (tensor == 1) return true;
  if (varies_within_groups(experiment.cluster, tensor)) return false;
  if (costs.node_of(0) == costs.node_of(layout.ranks() - 1)) return true;
  for (Rank rank = 1; rank < layout.ranks(); ++rank) {
    const bool first = rank % tensor == 0;
    if (!first && costs.adapter_of(rank) == costs.adapter_of(rank - 1)) return false;
    if (first || rank < tensor) continue;
    const Rank replica = rank - rank % tensor;
    const auto beside = [&](Rank r) { return costs.node_of(r) == costs.node_of(r - tensor); };
    if (beside(rank) != beside(replica)) return false;
  }
  return true;
}

}  // namespace cadenza::simulate
