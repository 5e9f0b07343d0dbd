// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/files.hpp"
#include "app/planner/corpus.hpp"
#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/search.hpp"
#include "app/runtime/machine.hpp"
#include "app/train/start.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::app {
namespace {

/// Requires kernels for the run; without them it would be refused on any machine.
void require_kernels(const config::Experiment& e) {
  const bool on_device = e.run.device == config::DeviceKind::cuda;
  const AttentionShape shape = config::attention_shape(e.model);
  with_real(e.run.dtype, [&]<typename Real>(Real) {
    const std::string why = kernels::refused_everywhere<Real>(shape, e.attention.kernel, on_device);
    if (!why.empty()) fail(ExitCode::usage, "{}", why);
  });
}

void print_layout(const config::Experiment& experiment) {
  const config::Parallel& p = experiment.parallel;
  fmt::print("{}: {} = {} (data {} x pipeline {} x tensor {} x context {}) + {}\n", experiment.name,
             counted(experiment.ranks(), "rank"), counted(p.trainers(), "trainer"), p.data,
             p.pipeline, p.tensor, p.context,
             experiment.attention.servers == 0
                 ? std::string("no dedicated servers (attention is served in place)")
                 : counted(experiment.attention.servers, "dedicated attention server"));
  fmt::print("model: {} parameters, {}; {}; {} tokens per step in microbatches of {}\n",
             format_count(static_cast<double>(model::parameter_elements(experiment.model))),
             counted(experiment.model.layers, "layer"), sharded_text(p), experiment.batch.tokens,
             experiment.batch.microbatch);
}

void print_ranks(const Forecast& step) {
  constexpr const char* kRow = " {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}";
  const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
  std::vector<std::string> rows;
  std::vector<double> memory;
  for (std::size_t rank = 0; rank < step.memory.size(); ++rank) {
    const exec::MemoryEstimate& m = step.memory[rank];
    rows.push_back(fmt::format(kRow, bytes(m.parameters), bytes(m.activations), bytes(m.attention),
                               bytes(m.communication), bytes(m.other), bytes(m.total()),
                               step.programs[rank].instructions.size()));
    memory.push_back(static_cast<double>(m.total()));
  }
  const std::string header = fmt::format(kRow, "parameters", "activations", "attention", "messages",
                                         "libraries", "memory", "operations");
  fmt::print("{}", rank_table(header, rows, memory, "memory"));
}

}  // namespace

void dry_run(const CommandLine& line) {
  config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  require_executed(experiment);
  require_kernels(experiment);
  config::check_faults(experiment, 0, experiment.run.steps);
  const auto corpus = open_corpus(experiment, true);
  const config::Machine machine = load_machine(experiment.cluster);
  const Choice choice = search_layout(experiment, *corpus, machine, true);
  experiment = choice.experiment;
  if (!choice.explanation.empty()) fmt::print("{}\n\n", choice.explanation);
  for (const std::string& decision : choice.decisions) fmt::print("{}\n", decision);
  const auto self = comm::make_self();
  SparseEstimates estimates;
  const auto contents = file_contents(experiment, *corpus);
  const auto read = [&](const Start& found) {
    if (found.is_folder) return model::HuggingFaceFolder(found.path).verify(experiment.model);
    const model::CheckpointReader checkpoint(found.path);
    checkpoint.verify(experiment.model);
    estimates = estimates_in(checkpoint, experiment);
  };
  const Start start = find_start(*self, line.from, experiment, contents, read);
  const data::Batch batch = data::Packer(*corpus, experiment).batch(start.step);
  print_layout(experiment);
  if (!start.path.empty()) fmt::print("from {}\n", describe(start));
  const std::string weights = describe_weights(experiment, start, estimates);
  if (!weights.empty()) fmt::print("{}\n", weights);
  fmt::print(
      "corpus: {}; step {} takes {} of them, {} FLOPs\n\n",
      counted(std::ssize(corpus->lengths()), "document"), start.step, batch.documents(),
      format_count(cost::step_flops(experiment.model, experiment.attention, batch.lengths())));

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
