// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/group.hpp"

#include <algorithm>

#include "cadenza/program/layout.hpp"

namespace cadenza::app {

Kind kind_of(const Group& group) {
  return {group.arrangement.attention.placement, group.arrangement.parallel.pipeline > 1};
}

std::map<Kind, double> least_ratios(std::span<const Group> groups) {
  std::map<Kind, double> least;
  for (const Group& group : groups) {
    for (const Judged& variant : group.variants) {
      if (variant.expected == 0) continue;
      const double ratio = variant.expected / variant.bound;
      const auto [known, fresh] = least.try_emplace(kind_of(group), ratio);
      if (!fresh) known->second = std::min(known->second, ratio);
    }
  }
  return least;
}

PoolOf pool_of_many(std::span<const Group> groups, const config::Experiment& given) {
  constexpr int kMany = 128;  // of more, each lacks little
  constexpr int kMost = 1024;
  constexpr double kQuickEntries = 4096;  // servers x context x pipeline
  PoolOf chosen;
  std::pair<bool, double> least;
  for (const Group& group : groups) {
    if (group.settled || !group.disaggregates()) continue;
    const config::Parallel& p = group.arrangement.parallel;
    const int pool = program::Layout(group.arrangement.of(given)).pool_size();
    const int servers = std::min(pool, kMost);
    const auto entries = static_cast<double>(servers * p.context * p.pipeline);
    const bool slow = entries > kQuickEntries;
    const std::pair cost(slow, slow ? entries : group.expected);
    if (servers <= kMany || (chosen.group != nullptr && least <= cost)) continue;
    chosen = {&group, servers};
    least = cost;
  }
  return chosen;
}

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
