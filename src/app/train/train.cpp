// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/runtime/machine.hpp"
#include "app/runtime/signals.hpp"
#include "app/train/training.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/model/activations.hpp"

namespace cadenza::app {
namespace {

void announce(const config::Experiment& e) {
  spdlog::info("{}: {} parameters, {} ({}, {}), {} of {} tokens", e.name,
               format_count(static_cast<double>(model::parameter_elements(e.model))),
               counted(e.ranks(), "rank"), counted(e.parallel.trainers(), "trainer"),
               e.attention.servers == 0 ? std::string("attention served in place")
                                        : counted(e.attention.servers, "attention server"),
               counted(e.run.steps, "step"), e.batch.tokens);
}

}  // namespace

int train(comm::Communicator& world, const CommandLine& line) {
  const config::Experiment experiment = load_experiment(world, line.experiment, line.overrides);
  if (world.rank() == 0) announce(experiment);
  int signal = 0;
  with_real(experiment.run.dtype, [&]<typename Real>(Real) {
    signal = Training<Real>(world, experiment, line.from, line.output).run();
  });
  return exit_code_of(signal);
}

}  // namespace cadenza::app
