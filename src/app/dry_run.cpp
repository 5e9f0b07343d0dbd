// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cadenza/app/commands.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/model/estimate.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {
namespace {

using plan::Tensor;

struct MemoryEstimate {
  std::int64_t parameters = 0;  ///< with gradients and optimizer moments
  std::int64_t activations = 0;
  std::int64_t attention = 0;      ///< workspace of foreign rows
  std::int64_t communication = 0;  ///< message buffers
  std::int64_t total() const { return parameters + activations + attention + communication; }
};

std::int64_t workspace_bytes(const plan::AttentionShape& shape, const exec::Binding& binding) {
  std::int64_t bytes = 0;
  for (const Tensor what :
       {Tensor::q, Tensor::o, Tensor::lse, Tensor::dout, Tensor::delta, Tensor::dq}) {
    bytes += binding.query_rows * exec::row_bytes(shape, what);
  }
  for (const Tensor what : {Tensor::k, Tensor::v, Tensor::dk, Tensor::dv}) {
    bytes += binding.key_rows * exec::row_bytes(shape, what);
  }
  return bytes;
}

std::int64_t message_bytes(const plan::AttentionShape& shape, const exec::Binding& binding) {
  std::int64_t bytes = 0;
  for (const auto* stages : {&binding.forward, &binding.backward}) {
    std::int64_t pass = 0;
    for (const exec::StageBinding& stage : *stages) {
      pass += stage.sends.bytes + stage.receives.bytes;
    }
    bytes = std::max(bytes, pass);
  }
  const bool widens = shape.element_bytes < shape.accumulator_bytes;
  return bytes + (widens ? exec::arriving_elements(shape, binding) * shape.accumulator_bytes : 0);
}

MemoryEstimate estimate_memory(const config::Experiment& experiment,
                               const std::vector<program::TickPlans>& ticks, Rank rank) {
  MemoryEstimate memory;
  if (rank < experiment.parallel.trainers()) {
    const config::Dtype dtype = experiment.run.dtype;
    memory.parameters = model::parameter_bytes(experiment.model, dtype);
    memory.activations =
        model::activation_bytes(experiment.model, experiment.batch.microbatch, dtype);
  }
  for (const program::TickPlans& tick : ticks) {
    const exec::Binding binding = exec::bind(tick, rank);
    const plan::AttentionShape& shape = tick.forward.workload.shape;
    memory.attention = std::max(memory.attention, workspace_bytes(shape, binding));
    memory.communication = std::max(memory.communication, message_bytes(shape, binding));
  }
  return memory;
}

void print_layout(const config::Experiment& experiment) {
  fmt::print("{}: {} ranks = {} trainers (data {}) + {}\n", experiment.name, experiment.ranks(),
             experiment.parallel.trainers(), experiment.parallel.data,
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
  const data::Packer packer(*corpus, experiment.data, experiment.batch, experiment.seed);
  const data::Batch batch = packer.batch(0);
  const std::vector<program::TickPlans> ticks = program::plan_ticks(experiment, batch);

  print_layout(experiment);
  fmt::print("corpus: {} documents; step 0 takes {} of them, {} FLOPs\n\n",
             corpus->lengths().size(), batch.documents(),
             format_count(model::step_flops(experiment.model, batch.lengths())));

  std::vector<program::Program> programs;
  const int trainers = static_cast<int>(experiment.parallel.trainers());
  fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", "rank", "parameters",
             "activations", "attention", "messages", "memory", "operations");
  for (Rank rank = 0; rank < experiment.ranks(); ++rank) {
    programs.push_back(
        program::make_program(rank, trainers, static_cast<int>(experiment.model.layers), ticks));
    const MemoryEstimate m = estimate_memory(experiment, ticks, rank);
    const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
    fmt::print("{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}\n", rank, bytes(m.parameters),
               bytes(m.activations), bytes(m.attention), bytes(m.communication), bytes(m.total()),
               programs.back().steps.size());
  }
  const auto stuck = program::deadlocks(programs, trainers, ticks);
  if (!stuck.empty()) fail(ExitCode::communication, "programs deadlock: {}", stuck.front());

  std::vector<plan::Plan> forward;
  for (const program::TickPlans& tick : ticks) forward.push_back(tick.forward);
  fmt::print("\n{}\n", plan::to_table(forward));
}

}  // namespace cadenza::app
