// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "cadenza/app/commands.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/program/step_plan.hpp"

#include <fmt/format.h>

namespace cadenza::app {

void print_plan(const CommandLine& line) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  std::vector<plan::Plan> forward;
  for (program::TickPlans& tick : program::plan_ticks(experiment, packer.batch(line.step))) {
    forward.push_back(std::move(tick.forward));
  }
  fmt::print("{}\n", line.format == "json" ? plan::to_json(forward) : plan::to_table(forward));
}

}  // namespace cadenza::app
