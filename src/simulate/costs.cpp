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

double Costs::compute(const program::Step& step, Rank rank, std::int64_t rows) const {
  return program::seconds_of(step, shapes_.work(step, rank, rows), *this);
}

}  // namespace cadenza::simulate
