// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/plan_time.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cadenza::simulate {
namespace {

/// Adds the seconds of a stage's tasks to those of its servers.
void add_tasks(const plan::Stage& stage, const Costs& costs, std::vector<double>& servers) {
  std::vector<std::vector<const plan::PlacedTask*>> tasks(servers.size());
  for (const plan::PlacedTask& placed : stage.tasks) {
    tasks[static_cast<std::size_t>(placed.server)].push_back(&placed);
  }
  for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
    if (!tasks[rank].empty()) servers[rank] += costs.attend(tasks[rank], program::Pass::forward);
  }
}

/// Seconds at the busiest rank; it sends and receives at the same time.
double largest_transfer(const plan::Stage& stage, int ranks, const program::Layout& layout,
                        const Costs& costs) {
  std::vector<double> sent(static_cast<std::size_t>(ranks), 0.0);
  std::vector<double> received(static_cast<std::size_t>(ranks), 0.0);
  for (const plan::Move& move : stage.moves) {
    const Way way = costs.way(layout.world_rank(0, move.from), layout.world_rank(0, move.to));
    const double seconds = static_cast<double>(move.bytes) / way.bytes_per_second;
    sent[static_cast<std::size_t>(move.from)] += seconds;
    received[static_cast<std::size_t>(move.to)] += seconds;
  }
  double largest = 0;
  for (const double seconds : sent) largest = std::max(largest, seconds);
  for (const double seconds : received) largest = std::max(largest, seconds);
  return largest;
}

}  // namespace

plan::Prediction predict(const plan::Plan& plan, const program::Layout& layout,
                         const Costs& costs) {
  std::vector<double> servers(static_cast<std::size_t>(plan.workload.ranks), 0.0);
  plan::Prediction prediction;
  for (const plan::Stage& stage : plan.stages) {
    add_tasks(stage, costs, servers);
    prediction.predicted_seconds += largest_transfer(stage, plan.workload.ranks, layout, costs);
  }
  const double all = std::accumulate(servers.begin(), servers.end(), 0.0);
  prediction.lower_bound_seconds = all / plan::usual_ranks(plan.workload.pool_capacity());
  for (std::size_t rank = 0; rank < servers.size(); ++rank) {
    servers[rank] /= plan::usual_ranks(plan.workload.capacity(static_cast<Rank>(rank)));
  }
  prediction.predicted_seconds += std::ranges::max(servers);
  return prediction;
}

}  // namespace cadenza::simulate
