// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "app/planner/commands.hpp"
#include "app/planner/corpus.hpp"
#include "app/planner/experiment_file.hpp"
#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/search.hpp"
#include "app/planner/terminal.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"

#include <fmt/format.h>

namespace cadenza::app {
namespace {

/// Of --index, for the documents of all plans.
SparseIndex given_index(const CommandLine& line, ReadIndex read_index,
                        const config::Experiment& experiment,
                        const std::vector<plan::Plan>& plans) {
  if (line.index.empty()) return {};
  if (line.format != "json") {
    fail(ExitCode::usage, "--index: found {} with --format {}; valid: only with --format json",
         line.index, line.format);
  }
  std::vector<std::int64_t> lengths;
  for (const plan::Plan& plan : plans) {
    const std::vector<std::int64_t>& some = plan.workload.lengths;
    lengths.insert(lengths.end(), some.begin(), some.end());
  }
  return read_index(line.index, lengths, experiment.model.heads, experiment.attention);
}

}  // namespace

void print_plan(const CommandLine& line, ReadIndex read_index) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const auto corpus = open_corpus(experiment, true);
  const config::Machine machine = load_machine(experiment.cluster);
  const Choice choice = search_layout(experiment, *corpus, machine, true);
  const data::Batch batch = data::Packer(*corpus, choice.experiment).batch(line.step);
  const Forecast step = forecast(choice.experiment, batch, machine);
  const std::vector<plan::Plan> plans = step.forward_plans();
  plan::StepNotes notes = notes_of(choice.experiment, batch, step, machine);
  notes.decisions = choice.decisions;
  notes.estimate = program::describe_estimate(choice.experiment, batch.step, {});
  notes.index = given_index(line, read_index, choice.experiment, plans);
  if (line.format == "json") {
    fmt::print("{}\n", plan::to_json(plans, notes));
  } else {
    if (!choice.explanation.empty()) print(choice.explanation + "\n\n");
    for (const std::string& decision : choice.decisions) print(decision + "\n");
    print(plan::to_table(plans, notes) + "\n" + describe(step, notes.rates) + "\n");
  }
}

}  // namespace cadenza::app
