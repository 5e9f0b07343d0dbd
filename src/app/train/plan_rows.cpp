// SPDX-License-Identifier: Apache-2.0
#include "app/train/plan_rows.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/predict.hpp"

namespace cadenza::app {
namespace {

/// Numbers of a step's plans in traces.
class Numbers {
 public:
  Numbers(const program::StepShape& step_shape, std::span<const program::TickPlans> plans)
      : index_(step_shape, plans),
        halves_(step_shape.halves > 1),
        all_layers_(static_cast<int>(step_shape.parts.back().end)) {}

  int tick(std::size_t plan) const { return index_.tick(static_cast<int>(plan)); }

  /// Numbers a planned task or stage.
  template <typename Row>
  void number(std::size_t plan, const plan::Workload& workload, Row& row) const {
    const auto place = static_cast<int>(plan);
    row.tick = index_.tick(place);
    row.half = halves_ ? index_.half(place) : -1;
    row.layer_class = index_.layer_class(place);
    row.layers = workload.layers.empty() ? all_layers_ : static_cast<int>(workload.layers.size());
  }

 private:
  program::PlanIndex index_;
  bool halves_;
  int all_layers_;
};

/// Homes by document.
using Homes = std::vector<std::vector<const plan::Home*>>;

Homes homes_of(const plan::Workload& workload) {
  Homes homes(workload.lengths.size());
  for (const plan::Home& home : workload.homes) {
    homes[at(home.document)].push_back(&home);
  }
  return homes;
}

/// Returns the rank that holds all queries of the task; -1: several.
Rank home_of(const Homes& homes, const Task& task) {
  for (const plan::Home* home : homes[at(task.document)]) {
    if (home->tokens.contains(task.q)) return home->rank;
  }
  return -1;
}

trace::PlannedTask planned_task(const plan::PlacedTask& placed, Rank home) {
  const Task& task = placed.task;
  trace::PlannedTask row;
  row.document = task.document;
  row.home = home;
  row.server = placed.server;
  row.q_begin = task.q.begin;
  row.q_end = task.q.end;
  row.k_begin = task.k.begin;
  row.k_end = task.k.end;
  row.cost = placed.cost;
  return row;
}

/// Returns the passes that run a tick's plans: one if all stages are in one phase, otherwise both.
std::vector<program::Pass> passes_of(const program::StepShape& step_shape,
                                     const program::Tick& tick) {
  const bool one_phase = step_shape.layout.pools_stages() && step_shape.layout.pipeline() > 1;
  if (one_phase || step_shape.evaluates) return {tick.phase};
  return {program::Pass::forward, program::Pass::backward};
}

trace::PlannedStage planned_stage(const program::TickPlans& plans, program::Pass pass, int stage,
                                  Rank server, const cost::Pool& pool) {
  const program::Traffic& traffic = plans.traffic(pass);
  const program::Part part = traffic.of(server, stage);
  const std::span<const program::PlannedMessage> messages = traffic.messages(stage);
  trace::PlannedStage row;
  row.phase = static_cast<std::uint32_t>(program::phase_of(pass));
  row.stage = stage;
  row.tasks = static_cast<std::int32_t>(part.tasks.size());
  row.messages_in = static_cast<std::int32_t>(part.receives.size());
  for (const std::uint32_t task : part.tasks) {
    const plan::PlacedTask& placed = plans.of(pass).stages[at(stage)].tasks[task];
    row.cost += placed.cost;
    row.attend_seconds = plan::with_task(row.attend_seconds, placed, pass, pool.rates);
  }
  for (const std::uint32_t index : part.receives) {
    const program::PlannedMessage& planned = messages[index];
    const cost::Way way = pool.rates.way(pool.world_rank(planned.from), pool.world_rank(server));
    row.bytes_in += planned.bytes;
    row.receive_seconds += static_cast<double>(planned.bytes) / way.bytes_per_second;
  }
  for (std::int64_t i = part.sends.begin; i < part.sends.end; ++i) {
    row.bytes_out += messages[at(i)].bytes;
  }
  return row;
}

}  // namespace

std::vector<std::vector<trace::PlannedTask>> planned_tasks(
    std::int64_t step, const program::StepShape& step_shape,
    std::span<const program::TickPlans> tick_plans) {
  std::vector<std::vector<trace::PlannedTask>> by_server;
  const Numbers numbers(step_shape, tick_plans);
  for (std::size_t i = 0; i < tick_plans.size(); ++i) {
    const plan::Plan& plan = tick_plans[i].forward;
    const Homes homes = homes_of(plan.workload);
    by_server.resize(static_cast<std::size_t>(plan.workload.ranks));
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      for (const plan::PlacedTask& placed : plan.stages[stage].tasks) {
        trace::PlannedTask row = planned_task(placed, home_of(homes, placed.task));
        row.step = static_cast<std::uint32_t>(step);
        numbers.number(i, plan.workload, row);
        row.stage = static_cast<std::int32_t>(stage);
        by_server[at(placed.server)].push_back(row);
      }
    }
  }
  return by_server;
}

std::vector<trace::PlannedTask> in_world(std::vector<trace::PlannedTask> tasks,
                                         const program::Layout& layout, int pool) {
  for (trace::PlannedTask& task : tasks) {
    if (task.home >= 0) task.home = layout.world_rank(pool, task.home);
    task.server = layout.world_rank(pool, task.server);
  }
  return tasks;
}

std::vector<trace::PlannedStage> planned_stages(std::int64_t step,
                                                const program::StepShape& step_shape,
                                                std::span<const program::TickPlans> tick_plans,
                                                Rank rank, const cost::Pool& pool) {
  const Rank server = step_shape.layout.in_pool(rank);
  const std::vector<program::Tick> phases = step_shape.ticks();
  std::vector<trace::PlannedStage> rows;
  const Numbers numbers(step_shape, tick_plans);
  for (std::size_t i = 0; i < tick_plans.size(); ++i) {
    const std::vector<Rank>& servers = tick_plans[i].forward.workload.servers;
    if (!std::ranges::binary_search(servers, server)) continue;
    for (const program::Pass pass : passes_of(step_shape, phases[at(numbers.tick(i))])) {
      for (int stage = 0; stage < tick_plans[i].traffic(pass).stages(); ++stage) {
        trace::PlannedStage& row =
            rows.emplace_back(planned_stage(tick_plans[i], pass, stage, server, pool));
        row.step = static_cast<std::uint32_t>(step);
        numbers.number(i, tick_plans[i].forward.workload, row);
        row.server = rank;
      }
    }
  }
  return rows;
}

}  // namespace cadenza::app
