// SPDX-License-Identifier: Apache-2.0
// cadenza evaluate: the forward passes of a run, from a checkpoint, without updates.
#include "app/commands.hpp"
#include "app/evaluate/evaluation.hpp"
#include "app/experiment_file.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "app/runtime/signals.hpp"
#include "app/train/training.hpp"

namespace cadenza::app {
namespace {

/// Returns the experiment with steps of forward passes. Nothing is kept for a backward pass, every
/// document belongs to the step that reads it, and the weights attend as they do after training.
/// @throws Error(usage) where there is no step
config::Experiment evaluating(config::Experiment e) {
  if (e.run.steps == 0) {
    fail(ExitCode::usage, "run.steps: found 0, which evaluates nothing; valid: an integer >= 1");
  }
  e.run.evaluates = true;
  e.run.recompute = config::Recompute::layer;
  e.run.checkpoint.every = 0;
  e.parallel.shard = config::Shard::none;
  if (e.attention.overlap == config::Overlap::automatic)
    e.attention.overlap = config::Overlap::none;
  if (config::delays_documents(e.batch.packing)) e.batch.packing = config::Packing::pooled;
  e.attention.sparse.dense_steps = 0;
  e.attention.sparse.refresh = 1;
  return e;
}

}  // namespace

int evaluate(comm::Communicator& world, const CommandLine& line) {
  config::Experiment experiment = load_experiment(world, line.experiment, line.overrides);
  collectively(world, [&] { experiment = evaluating(experiment); });
  const std::string output =
      line.output.empty() ? "runs/" + experiment.name + "-evaluated" : line.output;
  Evaluation evaluation(line.format == "json");
  int signal = 0;
  with_real(experiment.run.dtype, [&]<typename Real>(Real) {
    signal = Training<Real>(world, experiment, line.from, output, &evaluation).run();
  });
  return exit_code_of(signal);
}

}  // namespace cadenza::app
