// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/group.hpp"

#include <algorithm>

#include "cadenza/program/layout.hpp"

namespace cadenza::app {

namespace {

/// Sets, or lowers, what is known of a key.
template <class Key>
void lower(std::map<Key, double>& least, const Key& key, double ratio) {
  const auto [known, fresh] = least.try_emplace(key, ratio);
  if (!fresh) known->second = std::min(known->second, ratio);
}

}  // namespace

Ratios::Ratios(std::span<const Group> groups) {
  for (const Group& group : groups) {
    for (const Judged& variant : group.variants) {
      if (variant.expected == 0) continue;
      const double ratio = variant.expected / variant.bound;
      lower(of_kinds_, kind_of(group), ratio);
      if (!group.disaggregates()) lower(of_layouts_, layout_of(group), ratio);
    }
  }
}

double Ratios::of(const Group& group) const {
  if (const auto known = of_layouts_.find(layout_of(group));
      known != of_layouts_.end() && !group.disaggregates()) {
    return known->second;
  }
  const auto known = of_kinds_.find(kind_of(group));
  return known == of_kinds_.end() ? 1 : known->second;
}

Ratios::Kind Ratios::kind_of(const Group& group) {
  return {group.arrangement.attention.placement, group.arrangement.parallel.pipeline > 1};
}

Ratios::Layout Ratios::layout_of(const Group& group) {
  const config::Parallel& p = group.arrangement.parallel;
  return {p.data, p.pipeline, p.tensor, p.context, p.chunks, group.arrangement.microbatch};
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
  constexpr double kWorkOfPair = 1500;  // of ranks of a context group in a microbatch, about
  const config::Parallel& p = e.parallel;
  const auto context = static_cast<double>(p.context);
  const auto stages = static_cast<double>(p.pipeline);
  const bool pools = config::disaggregates(e.attention.placement);
  const double microbatches = 2 * stages;
  return kWorkOfPair * (pools ? 6 : 1) * context * context * stages * microbatches;
}

}  // namespace cadenza::app
