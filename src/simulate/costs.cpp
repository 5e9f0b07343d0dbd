// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/costs.hpp"

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/program/operation_time.hpp"

namespace cadenza::simulate {

Costs::Costs(const config::Machine& machine, const config::Experiment& experiment,
             const program::Layout& layout)
    : Rates(machine, experiment.cluster, experiment.model.head_dim()), shapes_(experiment, layout) {
  if (experiment.cluster.machine.empty() || machine.dtype == experiment.run.dtype) return;
  fail(ExitCode::usage,
       "cluster.machine: found {}, measured in {}; valid: a machine "
       "measured in run.dtype = {}",
       experiment.cluster.machine, config::word_of(machine.dtype),
       config::word_of(experiment.run.dtype));
}

double Costs::attend(std::span<const plan::PlacedTask* const> tasks, program::Pass pass) const {
  double seconds = launch_seconds();
  for (const plan::PlacedTask* placed : tasks) {
    seconds += plan::placed_seconds(*placed, pass, *this);
  }
  return seconds;
}

double Costs::observe(plan::IndexRound round, double keys) const {
  // Half of the products of a forward pass, then passes over the scores in memory; an owner ranks
  // two numbers of every key.
  constexpr std::int64_t kMeasured = 4096;
  constexpr double kRanking = 20e-9;
  const Task rows{0, {kMeasured - SparseRule::kObserved, kMeasured}, {0, kMeasured}, {0, 1}};
  const double forward = task_seconds(rows, program::Pass::forward) / double{kMeasured};
  switch (round) {
    case plan::IndexRound::observed:
      return 0.5 * forward * keys;
    case plan::IndexRound::peak:
    case plan::IndexRound::sum:
      return 0.15 * forward * keys;
    case plan::IndexRound::mass:
      return kRanking * keys;
    case plan::IndexRound::pattern:
      break;
  }
  return 0;
}

double Costs::compute(const program::Step& step, Rank rank, std::int64_t rows) const {
  return program::seconds_of(step, shapes_.work(step, rank, rows), *this);
}

}  // namespace cadenza::simulate
