// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/group.hpp"

#include <algorithm>

namespace cadenza::app {

namespace {

/// Sets, or lowers, what is known of a key.
template <class Key>
void lower(std::map<Key, double>& least, const Key& key, double ratio) {
  const auto [known, fresh] = least.try_emplace(key, ratio);
  if (!fresh) known->second = std::min(known->second, ratio);
}

template <class Key>
double known_or_1(const std::map<Key, double>& least, const Key& key) {
  const auto known = least.find(key);
  return known == least.end() ? 1 : known->second;
}

/// Of the variant that is nearest to its bound; 0: the group was not looked at.
double least_ratio(const Group& group) {
  double least = 0;
  for (const Judged& variant : group.variants) {
    const double seconds = variant.outcome == Outcome::simulated ? variant.first : variant.expected;
    const double ratio = seconds / variant.bound;
    if (seconds > 0 && (least == 0 || ratio < least)) least = ratio;
  }
  return least;
}

}  // namespace

Ratios::Ratios(std::span<const Group> groups) {
  std::vector<std::pair<const Group*, double>> known;
  for (const Group& group : groups) {
    const double ratio = least_ratio(group);
    if (ratio == 0) continue;
    known.emplace_back(&group, ratio);
    least_ = std::min(least_, ratio * group.variants.front().bound);
  }
  for (const auto& [group, ratio] : known) {
    lower(of_kinds_[kind_of(*group)], group->arrangement.parallel.context, ratio);
    lower(of_families_, group->family, ratio);
  }
  const auto family = [](const auto& one) { return one.first->family; };
  for (const auto& [group, ratio] : known) {
    if (std::ranges::count(known, group->family, family) == 1) continue;  // nothing to compare with
    lower(in_families_, kind_of(*group), ratio / of_families_.at(group->family));
  }
}

double Ratios::of(const Group& group) const {
  const auto known = of_families_.find(group.family);
  if (known == of_families_.end()) return of_kind(group);
  return known->second * known_or_1(in_families_, kind_of(group));
}

double Ratios::of_kind(const Group& group) const {
  const auto known = of_kinds_.find(kind_of(group));
  if (known == of_kinds_.end()) return 1;
  const std::map<std::int64_t, double>& by_context = known->second;
  auto from = by_context.lower_bound((group.arrangement.parallel.context + 1) / 2);
  if (from == by_context.end()) --from;
  double least = from->second;
  for (; from != by_context.end(); ++from) least = std::min(least, from->second);
  return least;
}

Ratios::Kind Ratios::kind_of(const Group& group) {
  const config::Attention& a = group.arrangement.attention;
  return {a.placement, a.overlap, group.arrangement.parallel.pipeline > 1};
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
  // By pair of a context group's ranks, a microbatch after the other: of looks at 1B to 405B on 8
  // to 1024 devices, two thirds of them within a factor of 2.
  constexpr double kRing = 12000, kDynamic = 2000, kPool = 8000, kOther = 5000;
  const config::PlacementTraits& placement = config::traits_of(e.attention.placement);
  double of_pair = kOther;
  if (placement.keys == config::KeyPath::ring) of_pair = kRing;
  if (placement.shares == config::Shares::dynamic) of_pair = kDynamic;
  if (placement.reach == config::Reach::pool) of_pair = kPool;
  const auto servers = e.attention.servers / (e.parallel.data * e.parallel.tensor);
  const auto ranks = static_cast<double>(e.parallel.context + servers);
  const auto stages = static_cast<double>(e.parallel.pipeline);
  const bool together = e.pipeline_schedule() == config::PipelineSchedule::phase_aligned;
  return of_pair * ranks * ranks * stages * (together ? stages : 1);
}

}  // namespace cadenza::app
