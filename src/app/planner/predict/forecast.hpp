// SPDX-License-Identifier: Apache-2.0
// A step before it runs: plans and programs of all ranks, the memory they need and the time they
// should take.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

/// Bytes of a rank: run.memory where that is given, else the machine's; 0: not known.
inline std::int64_t memory_of_rank(const config::Experiment& e, const config::Machine& machine) {
  return e.run.memory > 0 ? e.run.memory : machine.memory;
}

struct Forecast {
  std::vector<program::TickPlans> tick_plans;
  std::vector<program::Program> programs;
  std::vector<exec::MemoryEstimate> memory;  ///< of programs[i].rank
  simulate::Result result;

  /// Program whose rank needs the most memory.
  std::size_t fullest() const;
  std::int64_t peak_bytes() const { return memory[fullest()].total(); }
  std::vector<plan::Plan> forward_plans() const;
};

/// @param all_ranks  @see forecast
std::vector<program::Program> make_programs(const program::StepShape& step_shape,
                                            std::span<const program::TickPlans> tick_plans,
                                            bool all_ranks);

/// program::plan_ticks() on all cores.
std::vector<program::TickPlans> plan_on_all_cores(const config::Experiment& experiment,
                                                  const data::Batch& batch,
                                                  const config::Machine& machine,
                                                  const SparseEstimate& estimate = {},
                                                  const std::vector<std::int64_t>& reused = {});

/// Plans and programs with their memory; the clock has not run yet.
/// @param all_ranks  @see forecast
Forecast prepare(const config::Experiment& experiment, const program::StepShape& step_shape,
                 std::vector<program::TickPlans> tick_plans, bool all_ranks);

/// Runs the clock. @throws Error as forecast
void advance(Forecast& step, const config::Experiment& experiment,
             const program::StepShape& step_shape, const simulate::Costs& costs,
             std::int64_t number, const simulate::Observer& observer = {});

/// @param all_ranks  otherwise programs and memory are those of tensor coordinate 0 alone: the
///                   other tensor ranks do the same at the same time
/// @throws Error(usage) where a placement makes an invalid plan or a step takes decades,
/// Error(communication) where programs deadlock
Forecast forecast(const config::Experiment& experiment, const program::StepShape& step_shape,
                  const data::Batch& batch, const simulate::Costs& costs, bool all_ranks,
                  const simulate::Observer& observer = {}, const SparseEstimate& estimate = {},
                  const std::vector<std::int64_t>& reused = {});

/// Of all ranks.
Forecast forecast(const config::Experiment& experiment, const data::Batch& batch,
                  const config::Machine& machine, const SparseEstimate& estimate = {});

/// Which states of parameters the ranks of data x context share: "master weights and moments are
/// sharded over 16 ranks".
std::string sharded_text(const config::Parallel& parallel);

/// What predictions are for: "machine h100 (inputs/machines/h100.yaml)"; cost::nominal_rates().
std::string machine_text(const config::Cluster& cluster, const config::Machine& machine);

/// What reports print beside the plans. Memory and predictions are those of pool 0.
plan::StepNotes notes_of(const config::Experiment& experiment, const data::Batch& batch,
                         const Forecast& step, const config::Machine& machine);

/// "step: predicted 1.2 s (machine h100); lower bound 1.0 s, ...".
std::string describe(const Forecast& step, const std::string& rates);

}  // namespace cadenza::app
