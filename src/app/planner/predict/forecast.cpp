// SPDX-License-Identifier: Apache-2.0
#include "app/planner/predict/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "app/planner/all_cores.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::app {
namespace {

/// Traces count nanoseconds in 64 bits; what is no number is not shorter either.
void check_time(double seconds) {
  constexpr double kLongest = 1e9;
  if (seconds < kLongest) return;
  fail(ExitCode::usage,
       "cluster.machine: found rates at which a step takes {:.3g} s; valid: less than {:.3g} s, "
       "with "
       "faster rates or a smaller step",
       seconds, kLongest);
}

}  // namespace

std::vector<plan::Plan> Forecast::forward_plans() const {
  std::vector<plan::Plan> plans;
  for (const program::TickPlans& tick : tick_plans) plans.push_back(tick.forward);
  return plans;
}

std::size_t Forecast::fullest() const {
  const auto most = std::ranges::max_element(memory, {}, &exec::MemoryEstimate::total);
  return static_cast<std::size_t>(most - memory.begin());
}

std::vector<program::Program> make_programs(const program::StepShape& step_shape,
                                            std::span<const program::TickPlans> tick_plans,
                                            bool all_ranks) {
  std::vector<program::Program> programs;
  for (Rank rank = 0; rank < step_shape.layout.ranks(); ++rank) {
    if (!all_ranks && step_shape.layout.tensor_of(rank) > 0) continue;
    programs.push_back(program::make_program(step_shape, rank, tick_plans));
  }
  return programs;
}

std::vector<program::TickPlans> plan_on_all_cores(const config::Experiment& experiment,
                                                  const data::Batch& batch,
                                                  const config::Machine& machine,
                                                  const SparseEstimate& estimate,
                                                  const std::vector<std::int64_t>& reused) {
  const program::TickPlanner planner(experiment, batch, machine, estimate, reused);
  std::vector<std::vector<program::TickPlans>> ticks(planner.ticks());
  on_all_cores(ticks.size(), [&](std::size_t tick) { ticks[tick] = planner.plan(tick); });
  std::vector<program::TickPlans> plans;
  for (auto& tick : ticks) std::ranges::move(tick, std::back_inserter(plans));
  return plans;
}

Forecast prepare(const config::Experiment& experiment, const program::StepShape& step_shape,
                 std::vector<program::TickPlans> tick_plans, bool all_ranks) {
  Forecast step;
  step.tick_plans = std::move(tick_plans);
  step.programs = make_programs(step_shape, step.tick_plans, all_ranks);
  step.memory = exec::estimate_memory(experiment, step_shape, step.programs, step.tick_plans);
  return step;
}

void advance(Forecast& step, const config::Experiment& experiment,
             const program::StepShape& step_shape, const simulate::Costs& costs,
             std::int64_t number, const simulate::Observer& observer) {
  step.result = simulate::simulate(experiment, step_shape, step.programs, step.tick_plans, costs,
                                   observer, number);
  check_time(step.result.seconds);
}

Forecast forecast(const config::Experiment& experiment, const program::StepShape& step_shape,
                  const data::Batch& batch, const simulate::Costs& costs, bool all_ranks,
                  const simulate::Observer& observer, const SparseEstimate& estimate,
                  const std::vector<std::int64_t>& reused) {
  const config::Experiment of_step = program::experiment_of_step(experiment, batch.step);
  Forecast step =
      prepare(experiment, step_shape,
              plan_on_all_cores(of_step, batch, costs.machine(), estimate, reused), all_ranks);
  advance(step, experiment, step_shape, costs, batch.step, observer);
  return step;
}

Forecast forecast(const config::Experiment& experiment, const data::Batch& batch,
                  const config::Machine& machine, const SparseEstimate& estimate) {
  const program::StepShape step_shape(experiment);
  const simulate::Costs costs(machine, experiment, step_shape.layout);
  return forecast(experiment, step_shape, batch, costs, true, {}, estimate);
}

std::string machine_text(const config::Cluster& cluster, const config::Machine& machine) {
  const std::string rates = cluster.machine.empty()
                                ? cost::nominal_rates()
                                : fmt::format("machine {} ({})", machine.name, cluster.machine);
  if (cluster.software.is_own()) return rates;
  return fmt::format("{}, software {}", rates, cluster.software.name);
}

plan::StepNotes notes_of(const config::Experiment& experiment, const data::Batch& batch,
                         const Forecast& step, const config::Machine& machine) {
  const program::Layout layout(experiment);
  const cost::Pool pool = program::planning_pool(experiment, machine, layout);
  plan::StepNotes notes;
  notes.rates = machine_text(experiment.cluster, machine);
  for (const program::TickPlans& tick : step.tick_plans) {
    notes.predictions.push_back(plan::predict(tick.forward, pool));
  }
  for (Rank rank = 0; rank < layout.pool_size(); ++rank) {
    const auto world_rank = static_cast<std::size_t>(layout.world_rank(0, rank));
    notes.peak_bytes_per_rank.push_back(step.memory[world_rank].total());
  }
  for (int pool = 0; pool < layout.pools() && layout.pools() > 1; ++pool) {
    notes.pools.push_back(layout.members(pool));
  }
  if (experiment.batch.packing == config::Packing::best_fit) {
    notes.padding = experiment.batch.tokens - batch.tokens();
  }
  if (!config::delays_documents(experiment.batch.packing)) return notes;
  for (const data::Microbatch& microbatch : batch.microbatches) {
    for (const data::BatchDocument& document : microbatch.documents) {
      notes.delays.push_back(document.delay);
    }
  }
  return notes;
}

std::string describe(const Forecast& step, const std::string& rates) {
  const simulate::Result& t = step.result;
  const double left = t.seconds > 0 ? 1.0 - t.lower_bound_seconds / t.seconds : 0.0;
  return fmt::format(
      "step: predicted {} ({}); lower bound {}, with balanced computation and all transfers hidden "
      "({:.1f} % less); memory up to {}, on rank {}",
      format_duration(t.seconds), rates, format_duration(t.lower_bound_seconds), 100.0 * left,
      format_bytes(static_cast<double>(step.peak_bytes())), step.programs[step.fullest()].rank);
}

std::string sharded_text(const config::Parallel& parallel) {
  const std::int64_t ranks = parallel.data * parallel.context;
  const auto over = [&](std::string_view states) {
    return fmt::format("{} are sharded over {} ranks", states, ranks);
  };
  switch (ranks == 1 ? config::Shard::none : parallel.shard) {
    case config::Shard::parameters:
      return over("parameters, gradients and optimizer states");
    case config::Shard::optimizer:
      return over("master weights and moments");
    case config::Shard::none:
      break;
  }
  return "no states of parameters are sharded over data ranks";
}

}  // namespace cadenza::app
