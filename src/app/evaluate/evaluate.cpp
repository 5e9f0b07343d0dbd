// SPDX-License-Identifier: Apache-2.0
// cadenza evaluate: the forward passes of a run, from a checkpoint, without updates.
#include "app/commands.hpp"
#include "app/evaluate/evaluation.hpp"
#include "app/evaluate/scoring.hpp"
#include "app/experiment_file.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "app/runtime/signals.hpp"
#include "app/train/training.hpp"

namespace cadenza::app {
namespace {

/// Returns the experiment with steps of forward passes, for which nothing is kept.
/// @throws Error(usage) where there is no step
config::Experiment evaluating(config::Experiment e) {
  if (e.run.steps == 0) {
    fail(ExitCode::usage, "run.steps: found 0, which evaluates nothing; valid: an integer >= 1");
  }
  e = scoring(std::move(e));
  e.run.recompute = config::Recompute::layer;
  e.run.checkpoint.every = e.run.validate.every = 0;
  e.parallel.shard = config::Shard::none;
  if (e.attention.overlap == config::Overlap::automatic)
    e.attention.overlap = config::Overlap::none;
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
