// SPDX-License-Identifier: Apache-2.0
// An experiment, simulated: placement auto settled, its steps, and what they come to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/planner/predict/steps.hpp"
#include "app/planner/search/search.hpp"
#include "app/planner/step_report.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/costs.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

/// One experiment on one machine. Objects share nothing: several threads may have one each.
class Simulation {
 public:
  /// Opens the corpus and settles placement auto. @throws Error(usage, data)
  /// @param progress  of placement auto, on stderr
  Simulation(const config::Experiment& experiment, const config::Machine& machine,
             bool progress = false);

  /// @throws Error(usage) where a placement makes an invalid plan
  SimulatedStep run(std::int64_t step, const simulate::Observer& observer = {}) {
    return steps_->run(step, observer);
  }

  const config::Experiment& experiment() const { return steps_->experiment(); }
  const config::Machine& machine() const { return costs().machine(); }
  const program::StepShape& step_shape() const { return steps_->step_shape(); }
  /// Why placement auto chose what it chose; empty where the experiment names its placement.
  const std::string& explanation() const { return explanation_; }
  /// What else was auto, a line each.
  const std::vector<std::string>& decisions() const { return decisions_; }
  /// By placement auto.
  const std::vector<Considered>& considered() const { return considered_; }
  /// What the machine's tables do not cover, of all steps so far.
  std::vector<std::string> extrapolations() const { return costs().extrapolations(); }
  const simulate::Costs& costs() const { return steps_->costs(); }
  int nodes() const { return costs().node_of(step_shape().layout.ranks() - 1) + 1; }
  /// Of a step's programs, the one that is the rank's or stands for it.
  std::size_t program_of(Rank rank) const { return steps_->program_of(rank); }

 private:
  std::string explanation_;
  std::vector<std::string> decisions_;
  std::vector<Considered> considered_;
  std::optional<Steps> steps_;
};

/// Where the ranks' time goes, as shares of step time x ranks; they add up to 1.
struct TimeShares {
  double attention = 0;  ///< core attention
  double dense = 0;      ///< all other computation of the model
  double copies = 0;     ///< packing and unpacking of messages
  double optimizer = 0;
  double waiting = 0;      ///< for messages: attention's and the pipeline's
  double collectives = 0;  ///< the tensor group's, sums of gradients, waiting for their ranks
  double idle = 0;         ///< the rest
};
TimeShares shares_of(const simulate::RankTimes& times, double step_seconds);

/// Bytes that ranks need at their peak, against what they have.
struct MemoryVerdict {
  Rank fullest = 0;
  std::int64_t largest = 0;         ///< of `fullest`
  std::int64_t mean = 0;            ///< over the ranks
  std::int64_t smallest = 0;        ///< of the rank that needs least
  exec::MemoryEstimate parts;       ///< of `fullest`
  std::int64_t limit = 0;           ///< run.memory, or else the machine's; 0: not known
  std::int64_t ranks_beyond = 0;    ///< that need more than the limit
  std::vector<std::string> beyond;  ///< a line for each of them, or for a group of tensor ranks
  std::string sharded;              ///< sharded_text()
  bool fits() const { return ranks_beyond == 0; }
  /// "fits in 80 GiB: ...", "out of memory on 3 ranks: ..." or, without a limit, what is needed.
  std::string text() const;
};

/// Several steps in a few numbers: a row of `cadenza sweep`.
struct SimulationSummary {
  std::int64_t ranks = 0;
  double seconds = 0;                  ///< of a step, mean
  std::vector<double> steps;           ///< seconds of each
  double lower_bound_seconds = 0;      ///< mean
  TimeShares shares;                   ///< mean over ranks and steps, weighted by step time
  double attention_imbalance = 1;      ///< largest over mean attention time of serving ranks, mean
  double tokens = 0;                   ///< of a step, mean
  double bytes_sent = 0;               ///< by all ranks in a step, mean
  double model_flops = 0;              ///< of a step, mean
  double model_flops_utilization = 0;  ///< 0 where the machine's peak is not known
  MemoryVerdict memory;                ///< of the step that needs most
  std::vector<std::string> notes;      ///< what the machine's tables do not cover
  double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0.0; }
};

/// Adds a step of the simulation to what is known of those before.
void add_step(const Simulation& simulation, const SimulatedStep& step, SimulationSummary& summary);

/// All ranks of a step, by world rank, as metrics count them.
std::vector<RankStep> rank_steps(const Simulation& simulation, const SimulatedStep& step);

MemoryVerdict judge_memory(const Simulation& simulation, const SimulatedStep& step);

/// Simulates steps [first, first + steps). Thread-safe. @throws Error as Simulation does
SimulationSummary simulate_experiment(const config::Experiment& experiment,
                                      const config::Machine& machine, std::int64_t first,
                                      std::int64_t steps);

}  // namespace cadenza::app
