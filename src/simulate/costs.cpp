// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/costs.hpp"

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/program/operation_time.hpp"

namespace cadenza::simulate {

cost::IndexWork index_work(plan::IndexRound round, double keys, int head_dim) {
  constexpr double kScores = SparseRule::kObserved;  // of a key
  switch (round) {
    case plan::IndexRound::observed:
      return {.flops = keys * kScores * 2 * head_dim};
    case plan::IndexRound::peak:
    case plan::IndexRound::sum:
      return {.scores = keys * kScores};
    case plan::IndexRound::mass:
      return {.masses = keys * 2};  // of a key and of a diagonal
    case plan::IndexRound::pattern:
      break;
  }
  return {};
}

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

double Costs::compute(const program::Step& step, Rank rank, std::int64_t rows) const {
  return program::seconds_of(step, shapes_.work(step, rank, rows), *this);
}

}  // namespace cadenza::simulate
