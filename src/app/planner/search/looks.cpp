// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/looks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "app/planner/predict/forecast.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {
namespace {

/// Parts of a step that are looked at before all of it. What ranks of a pool send grows with their
/// number; one microbatch says little of the others.
constexpr std::array<SampleSize, 3> kSamples = {{{8, 2}, {64, 4}, {256, 8}}};
constexpr double kPlanning = 0.6;   ///< of a plan's entries; the rest is for each variant
constexpr double kApart = 1.005;    ///< ... of variants with the same plans
constexpr double kShortWork = 4e6;  ///< about a second
constexpr double kCheapWork = 1e6;

/// @param size  at least
Sample part_of(const config::Experiment& e, const PackedStep& step, SampleSize size) {
  return sample_of(e, step.batch, step.attention, size);
}

}  // namespace

double Looks::most_of(const Group& group) const {
  // A bound leaves no doubt where no rank is faster than the machine says.
  const bool sure = given_.cluster.speed_spread == 0 && given_.cluster.jitter == 0;
  if (group.looks == 0 && sure) return best;
  return best * (group.work < kCheapWork ? kDoubtOfCheap : kDoubt);
}

std::optional<double> Looks::at_part(Group& group) {
  while (group.looks < kSamples.size()) {
    const SampleSize& size = kSamples[group.looks++];
    const config::Experiment e = group.arrangement.of(given_);
    const Sample sample = part_of(e, steps_.in_microbatches_of(e).front(), size);
    if (sample.parts == 1) break;
    if (sample.text != group.variants.front().sample) return estimate_by(group, size);
  }
  return std::nullopt;
}

/// Of the variants with equal shards the first that fits: more recomputation is only slower.
template <class Look>
void Looks::first_that_fit(Group& group, Look look_at) {
  std::array<bool, 3> done{};
  for (Judged& variant : group.variants) {
    bool& mine = done[at(variant.candidate.parallel.shard)];
    if (mine || variant.outcome == Outcome::too_large) continue;
    room_.measure(variant);
    mine = room_.has(variant) && (look_at(variant), room_.has(variant));
    if (!mine) variant.outcome = Outcome::too_large;
  }
}

/// Returns the work of it.
double Looks::estimate_by(Group& group, SampleSize size) {
  const config::Experiment e = group.arrangement.of(given_);
  const std::vector<PackedStep>& steps = steps_.in_microbatches_of(e);
  std::vector<StepPlans> plans;
  exec::MemoryEstimate more;
  double planning = 0, whole = 0, looking = 0;
  for (const PackedStep& step : steps) {
    const Sample part = part_of(e, step, size);
    plans.push_back(program::plan_ticks(part.experiment, part.batch, machine_));
    more = exec::larger_of_each(more, memory_of_plans(part, plans.back()));
    group.variants.front().sample = part.text;
    const double planned = work_of(plans.back(), 0);
    planning += planned;
    whole += part.parts * planned;
  }
  double expected = std::numeric_limits<double>::infinity();
  first_that_fit(group, [&](Judged& variant) {
    room_.measure(variant, more);
    variant.work = whole;
    if (!room_.has(variant)) return;
    variant.expected = variant.bound;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Sample sample = part_of(variant.candidate.of(given_), steps[i], size);
      const Estimate beyond = estimate(sample, plans[i], 0, machine_);
      variant.expected += steps[i].share * beyond.seconds;
      variant.sample = sample.text;
      whole += beyond.operations;
      looking += beyond.operations / sample.parts;
    }
    expected = std::min(expected, variant.expected);
  });
  group.settled = std::isinf(expected);
  group.expected = expected;
  group.work = whole;
  return planning + looking;
}

void Looks::at_all(Group& group) {
  group.settled = true;
  std::vector<StepPlans> plans;
  double least = std::numeric_limits<double>::infinity();
  std::ranges::stable_sort(group.variants, {}, [](const Judged& judged) {
    return std::pair(judged.expected == 0, judged.expected);
  });
  first_that_fit(group, [&](Judged& variant) {
    const bool behind = group.work > kShortWork && variant.expected > kApart * least;
    if (behind || variant.expected >= most_of(group)) return;
    simulate(variant, plans);
    if (room_.has(variant)) least = std::min(least, variant.expected);
  });
}

/// @param plans  of the group, by step; made for its first variant
void Looks::simulate(Judged& judged, std::vector<StepPlans>& plans) {
  const std::vector<PackedStep>& steps = steps_.in_microbatches_of(judged.candidate.of(given_));
  plans.resize(steps.size());
  Judged mean = judged;
  mean.bytes = 0;
  mean.parts = {};
  mean.seconds = mean.attention_imbalance = mean.work = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!add_step(mean, steps[i], plans[i])) {
      judged.bytes = mean.bytes;
      judged.fullest = mean.fullest;
      return;
    }
  }
  judged = mean;
  judged.outcome = Outcome::simulated;
  judged.first = judged.seconds;
  best = std::min(best, judged.seconds);
  simulated.push_back(judged);
  show_(judged.candidate, fmt::format("simulated {}", format_duration(judged.seconds)));
}

/// Adds what a step says by what it stands for. Returns whether it fits.
bool Looks::add_step(Judged& mean, const PackedStep& packed, StepPlans& tick_plans) {
  const config::Experiment e = mean.candidate.of(given_);
  const program::StepShape step_shape(e);
  const simulate::Costs costs(machine_, e, step_shape.layout);
  const bool planned_before = !tick_plans.empty();
  if (!planned_before) tick_plans = plan_on_all_cores(e, packed.batch, machine_);
  const double entries = work_of(tick_plans, 0);
  work += (planned_before ? 1 - kPlanning : 1) * entries;
  Forecast step = prepare(e, step_shape, std::move(tick_plans),
                          !simulate::tensor_ranks_alike(e, step_shape.layout, costs));
  if (step.peak_bytes() > mean.bytes) {
    mean.bytes = step.peak_bytes();
    mean.fullest = step.memory[step.fullest()].largest();
  }
  mean.work += packed.share * entries;
  const bool fits = room_.has(mean);
  if (fits) {
    advance(step, e, step_shape, costs, packed.batch.step);
    const auto operations = static_cast<double>(step.result.operations);
    work += operations;
    mean.work += packed.share * operations;
    mean.seconds += packed.share * step.result.seconds;
    mean.parts = mean.parts + packed.share * parts_of(step.result);
    mean.attention_imbalance += packed.share * imbalance_of(e, step.result);
  }
  tick_plans = std::move(step.tick_plans);
  return fits;
}

}  // namespace cadenza::app
