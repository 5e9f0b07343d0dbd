// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"

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
  for (const program::TickPlans& tick : ticks) plans.push_back(tick.forward);
  return plans;
}

std::size_t Forecast::fullest() const {
  const auto most = std::ranges::max_element(memory, {}, &exec::MemoryEstimate::total);
  return static_cast<std::size_t>(most - memory.begin());
}

Forecast forecast(const config::Experiment& experiment, const program::Outline& outline,
                  const data::Batch& batch, const simulate::Costs& costs, bool all_ranks,
                  const simulate::Observer& observer) {
  Forecast step;
  step.ticks = program::plan_ticks(experiment, batch);
  for (Rank rank = 0; rank < outline.layout.ranks(); ++rank) {
    if (!all_ranks && outline.layout.tensor_of(rank) > 0) continue;
    step.programs.push_back(program::make_program(outline, rank, step.ticks));
    step.memory.push_back(
        exec::estimate_memory(experiment, outline, step.programs.back(), step.ticks));
  }
  step.result = simulate::simulate(experiment, outline, step.programs, step.ticks, costs, observer,
                                   batch.step);
  check_time(step.result.seconds);
  return step;
}

Forecast forecast(const config::Experiment& experiment, const data::Batch& batch,
                  const config::Machine& machine) {
  const program::Outline outline(experiment);
  const simulate::Costs costs(machine, experiment, outline.layout);
  return forecast(experiment, outline, batch, costs, true);
}

plan::StepNotes notes_of(const config::Experiment& experiment, const data::Batch& batch,
                         const Forecast& step) {
  const program::Layout layout(experiment);
  plan::StepNotes notes;
  for (Rank rank = 0; rank < layout.pool_size(); ++rank) {
    const auto world_rank = static_cast<std::size_t>(layout.world_rank(0, rank));
    notes.peak_bytes_per_rank.push_back(step.memory[world_rank].total());
  }
  for (int pool = 0; pool < layout.pools() && layout.pools() > 1; ++pool) {
    notes.pools.push_back(layout.members(pool));
  }
  if (experiment.batch.packing != config::Packing::balanced) return notes;
  for (const data::Microbatch& microbatch : batch.microbatches) {
    for (const data::BatchDocument& document : microbatch.documents) {
      notes.delays.push_back(document.delay);
    }
  }
  return notes;
}

std::string describe(const Forecast& step) {
  const simulate::Result& t = step.result;
  const double left = t.seconds > 0 ? 1.0 - t.lower_bound_seconds / t.seconds : 0.0;
  return fmt::format(
      "step: predicted {}, no less than {} with all computation even and no transfer exposed "
      "({:.1f} "
      "% of the step is left to win); up to {} on rank {}",
      format_duration(t.seconds), format_duration(t.lower_bound_seconds), 100.0 * left,
      format_bytes(static_cast<double>(step.peak_bytes())), step.programs[step.fullest()].rank);
}

}  // namespace cadenza::app
