// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cadenza/app/commands.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/model/estimate.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {
namespace {

void print_layout(const config::Experiment& experiment) {
  const config::Parallel& p = experiment.parallel;
  fmt::print("{}: {} ranks = {} trainers (data {} x pipeline {} x tensor {} x context {}) + {}\n",
             experiment.name, experiment.ranks(), p.trainers(), p.data, p.pipeline, p.tensor,
             p.context,
             experiment.attention.servers == 0
                 ? std::string("no dedicated servers (attention is served in place)")
                 : fmt::format("{} dedicated attention servers", experiment.attention.servers));
  fmt::print("model: {} parameters, {} layers; {} tokens per step in microbatches of {}\n",
             format_count(static_cast<double>(model::parameter_elements(experiment.model))),
             experiment.model.layers, experiment.batch.tokens, experiment.batch.microbatch);
}

}  // namespace

void dry_run(const CommandLine& line) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  const data::Batch batch = packer.batch(0);
  const std::vector<program::TickPlans> ticks = program::plan_ticks(experiment, batch);

  print_layout(experiment);
  fmt::print("corpus: {} documents; step 0 takes {} of them, {} FLOPs\n\n",
             corpus->lengths().size(), batch.documents(),
             format_count(model::step_flops(experiment.model, batch.lengths())));

  const program::Outline outline(experiment);
  std::vector<program::Program> programs;
  fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", "rank", "parameters",
             "activations", "attention", "messages", "memory", "operations");
  for (Rank rank = 0; rank < experiment.ranks(); ++rank) {
    programs.push_back(program::make_program(outline, rank, ticks));
    const exec::MemoryEstimate m =
        exec::estimate_memory(experiment, outline, programs.back(), ticks);
    exec::require_memory(experiment, rank, m);
    const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
    fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", rank, bytes(m.parameters),
               bytes(m.activations), bytes(m.attention), bytes(m.communication), bytes(m.total()),
               programs.back().steps.size());
  }
  const auto stuck = program::deadlocks(outline, programs, ticks);
  if (!stuck.empty()) fail(ExitCode::communication, "programs deadlock: {}", stuck.front());

  std::vector<plan::Plan> forward;
  for (const program::TickPlans& tick : ticks) forward.push_back(tick.forward);
  fmt::print("\n{}\n", plan::to_table(forward));
}

}  // namespace cadenza::app
