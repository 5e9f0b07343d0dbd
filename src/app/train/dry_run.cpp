// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/file_contents.hpp"
#include "app/plan/forecast.hpp"
#include "app/search/search.hpp"
#include "app/simulate/simulation.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/estimate.hpp"
#include "cadenza/model/llama.hpp"
#include "start.hpp"

namespace cadenza::app {
namespace {

/// What a run would be refused for on any device.
void require_devices(const config::Experiment& e) {
  if (e.run.device != config::DeviceKind::cuda || e.run.dtype != config::Dtype::bfloat16) return;
  const std::string why =
      kernels::refused_on_devices(model::attention_shape(e.model, 1, e.attention.kernel));
  if (!why.empty()) fail(ExitCode::usage, "{}", why);
}

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

void print_ranks(const Forecast& step) {
  const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
  fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", "rank", "parameters",
             "activations", "attention", "messages", "libraries", "memory", "operations");
  for (std::size_t rank = 0; rank < step.memory.size(); ++rank) {
    const exec::MemoryEstimate& m = step.memory[rank];
    fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", rank,
               bytes(m.parameters), bytes(m.activations), bytes(m.attention),
               bytes(m.communication), bytes(m.other), bytes(m.total()),
               step.programs[rank].steps.size());
  }
}

}  // namespace

void dry_run(const CommandLine& line) {
  config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  require_devices(experiment);
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  const config::Machine machine = load_machine(experiment.cluster);
  const Choice choice = search_layout(experiment, packer, machine, true);
  experiment = choice.experiment;
  if (!choice.explanation.empty()) fmt::print("{}\n\n", choice.explanation);
  for (const std::string& decision : choice.decisions) fmt::print("{}\n", decision);
  const auto self = comm::make_self();
  SparseEstimates estimates;
  const model::FileContents contents = file_contents(experiment, *corpus);
  const Start start = find_start(*self, line.from, experiment, contents, [&](const auto& path) {
    const model::CheckpointReader checkpoint(path);
    checkpoint.verify(experiment.model);
    estimates = estimates_in(checkpoint, experiment);
  });
  const data::Batch batch = packer.batch(start.step);
  print_layout(experiment);
  if (!start.checkpoint.empty()) fmt::print("from {}, step {}\n", start.checkpoint, start.step);
  const std::string weights = describe_weights(experiment, start, estimates);
  if (!weights.empty()) fmt::print("{}\n", weights);
  fmt::print("corpus: {} documents; step {} takes {} of them, {} FLOPs\n\n",
             corpus->lengths().size(), start.step, batch.documents(),
             format_count(
                 cost::step_flops(experiment.model, experiment.attention.mask(), batch.lengths())));

  const Forecast step = forecast(experiment, batch, machine, estimates.next);
  exec::require_memory(
      exec::memory_limit(experiment.run, {machine.memory, "memory of the machine " + machine.name}),
      step.programs[step.fullest()].rank, step.memory[step.fullest()]);
  print_ranks(step);
  const plan::StepNotes notes = notes_of(experiment, batch, step, machine);
  fmt::print("\n{}\n{}\n", plan::to_table(step.forward_plans(), notes),
             describe(step, notes.rates));
}

}  // namespace cadenza::app
