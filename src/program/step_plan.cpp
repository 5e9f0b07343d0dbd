// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/step_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/plan/validate.hpp"
#include "cadenza/program/operation_work.hpp"
#include "program/stream_order.hpp"

namespace cadenza::program {
namespace {

/// The microbatch of every context group of a pool in a tick.
std::vector<plan::Occupant> occupants(const Layout& layout, const data::Batch& batch,
                                      const Tick& tick) {
  std::vector<plan::Occupant> groups;
  for (const int microbatch : tick.microbatch) {
    for (int data = 0; data < layout.data(); ++data) {
      groups.push_back(microbatch < 0 ? nullptr : &microbatch_of(layout, batch, data, microbatch));
    }
  }
  return groups;
}

TickPlans with_traffic(plan::Plan forward, int half, const std::vector<int>& first_document) {
  TickPlans plans;
  plans.half = half;
  plans.first_document = first_document;
  plans.forward = std::move(forward);
  plans.backward = plan::mirror(plans.forward);
  plan::require_valid(plans.forward, plans.backward);
  add_traffic(plans);
  return plans;
}

/// Capacities by rank of a pool. One plan serves all pools, so a rank of it is as fast as the
/// slowest world rank that it stands for.
std::vector<std::int64_t> pool_capacities(const config::Experiment& experiment,
                                          const Layout& layout) {
  const std::vector<std::int64_t> given = experiment.attention.capacities(layout.ranks());
  if (given.empty()) return {};
  std::vector<std::int64_t> slowest(static_cast<std::size_t>(layout.pool_size()), 0);
  for (Rank rank = 0; rank < layout.ranks(); ++rank) {
    std::int64_t& capacity = slowest[at(layout.in_pool(rank))];
    const std::int64_t mine = given[at(rank)];
    capacity = capacity == 0 ? mine : std::min(capacity, mine);
  }
  return slowest;
}

}  // namespace

const data::Microbatch& microbatch_of(const Layout& layout, const data::Batch& batch, int data,
                                      int microbatch) {
  return batch.microbatches.at(static_cast<std::size_t>(microbatch * layout.data() + data));
}

plan::Workload make_workload(const config::Experiment& experiment, const Layout& layout,
                             std::span<const plan::Occupant> groups) {
  return plan::make_workload(experiment, groups, layout.dedicated(),
                             pool_capacities(experiment, layout));
}

std::vector<int> first_documents(std::span<const plan::Occupant> groups) {
  std::vector<int> first;
  int documents = 0;
  for (const plan::Occupant group : groups) {
    first.push_back(documents);
    if (group != nullptr) documents += static_cast<int>(group->documents.size());
  }
  return first;
}

std::vector<TickPlans> plan_tick(const config::Attention& attention, const plan::Workload& whole,
                                 const std::vector<int>& first_document, const cost::Pool& pool) {
  std::vector<plan::Workload> halves = {whole};
  if (attention.overlap == config::Overlap::ping_pong) {
    const std::array<plan::Workload, 2> both = plan::halves(whole);
    halves.assign(both.begin(), both.end());
  }
  std::vector<TickPlans> tick_plans;
  for (plan::Plan& plan : plan::make_plans(attention, halves, pool)) {
    const int half = static_cast<int>(tick_plans.size());
    tick_plans.push_back(with_traffic(std::move(plan), half, first_document));
  }
  return tick_plans;
}

TickPlanner::TickPlanner(const config::Experiment& experiment, const data::Batch& batch,
                         const config::Machine& machine, const SparseEstimate& shown,
                         const std::vector<std::int64_t>& reused)
    : experiment_(experiment),
      batch_(batch),
      step_shape_(experiment),
      pool_(planning_pool(experiment, machine, step_shape_.layout)),
      ticks_(step_shape_.ticks()),
      estimate_(shown.empty() ? estimate_of_budgets(experiment, batch.lengths()) : shown),
      classes_(layer_classes(experiment, batch.lengths(), estimate_)),
      reused_(reused) {}

std::vector<TickPlans> TickPlanner::plan(std::size_t tick) const {
  const auto groups = occupants(step_shape_.layout, batch_, ticks_[tick]);
  const std::vector<int> first = first_documents(groups);
  const plan::Workload whole = make_workload(experiment_, step_shape_.layout, groups);
  std::vector<TickPlans> plans;
  for (const LayerClass& each : classes_) {
    plan::Workload workload = whole;
    workload.layers = each.layers;
    if (each.full) {
      workload.mask = {};
      workload.sparse = {};
    }
    workload.reused = reused_;
    plan::weigh(workload, estimate_);
    for (TickPlans& half : plan_tick(experiment_.attention, workload, first, pool_)) {
      plans.push_back(std::move(half));
    }
  }
  return plans;
}

std::vector<TickPlans> plan_ticks(const config::Experiment& experiment, const data::Batch& batch,
                                  const config::Machine& machine, const SparseEstimate& estimate,
                                  const std::vector<std::int64_t>& reused) {
  const TickPlanner planner(experiment, batch, machine, estimate, reused);
  std::vector<TickPlans> plans;
  for (std::size_t tick = 0; tick < planner.ticks(); ++tick) {
    std::ranges::move(planner.plan(tick), std::back_inserter(plans));
  }
  return plans;
}

config::Experiment experiment_of_step(config::Experiment experiment, std::int64_t step) {
  if (step < experiment.attention.sparse.dense_steps) {
    experiment.attention.kind = config::AttentionKind::full;
  }
  return experiment;
}

std::string describe_estimate(const config::Experiment& experiment, std::int64_t step,
                              const SparseEstimate& estimate) {
  const SparseRule rule = experiment_of_step(experiment, step).attention.sparse_rule();
  if (rule.block == 0) return "";
  if (!estimate.empty()) return fmt::format("steps up to {}", step - 2);
  return traits_of(rule.kind).budgets ? "budgets" : "all pairs";
}

bool PatternChoice::chooses(std::int64_t step) const {
  if (sparse_.refresh == 1 || step < sparse_.dense_steps) return false;
  return lengths_.empty() || last_choice(step) == step;
}

std::int64_t PatternChoice::last_choice(std::int64_t step) const {
  if (sparse_.refresh == 1 || step < sparse_.dense_steps) return -1;
  if (sparse_.refresh == 0) return sparse_.dense_steps;
  return std::max(sparse_.dense_steps, step - step % sparse_.refresh);
}

void PatternChoice::chose(const data::Batch& batch) {
  lengths_ = batch.lengths();
  std::ranges::sort(lengths_);
  const auto twice = std::ranges::unique(lengths_);
  lengths_.erase(twice.begin(), twice.end());
}

std::vector<std::int64_t> PatternChoice::reused(std::int64_t step) const {
  if (sparse_.refresh == 1 || chooses(step)) return {};
  return lengths_;
}

StepPlan plan_step(const config::Experiment& whole, const data::Packer& packer, Rank rank,
                   std::int64_t step, const config::Machine& machine,
                   const SparseEstimate& estimate, const std::vector<std::int64_t>& reused) {
  const config::Experiment experiment = experiment_of_step(whole, step);
  StepPlan result;
  result.batch = packer.batch(step);
  result.tick_plans = plan_ticks(experiment, result.batch, machine, estimate, reused);
  result.program = make_program(StepShape(experiment), rank, result.tick_plans);
  Hasher hasher;
  for (const TickPlans& tick : result.tick_plans) {
    hasher.add(plan::hash(tick.forward)).add(plan::hash(tick.backward));
  }
  result.hash = hasher.value();
  return result;
}

}  // namespace cadenza::program
