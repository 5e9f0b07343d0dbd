// SPDX-License-Identifier: Apache-2.0
#include "app/experiment_file.hpp"

#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::app {
namespace {

void require_device(const config::Experiment& experiment) {
  const bool wants_cuda = experiment.run.device == config::DeviceKind::cuda;
  if (wants_cuda == kDeviceIsCuda) return;
  fail(ExitCode::usage, "run.device: found {}; valid: {} (this program was built for it)",
       wants_cuda ? "cuda" : "host", kDeviceIsCuda ? "cuda" : "host");
}

}  // namespace

void require_executed(const config::Experiment& experiment) {
  if (experiment.parallel.shard == config::Shard::parameters) {
    fail(ExitCode::usage,
         "parallel.shard: found parameters, which only plan, simulate and sweep know; valid here: "
         "none, optimizer");
  }
  const config::Software& software = experiment.cluster.software;
  if (software.is_own()) return;
  const bool changed = software.name == config::Software{}.name;
  fail(ExitCode::usage,
       "cluster.software: found {}{}, whose steps only plan, simulate and sweep predict; valid "
       "here: cadenza{}",
       software.name, changed ? " with other keys than its own" : "", changed ? " as it is" : "");
}

config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads) {
  std::string text, budgets;  // of the whole experiment, which rank 0 reads for all
  config::UnusedKeys unused;
  config::Experiment experiment;
  collectively(world, [&] {
    if (world.rank() != 0) return;
    experiment =
        shown(config::parse_experiment(experiment_text(path), path, overrides, &unused, heads));
    text = config::to_yaml(experiment);
    budgets = budgets_text(experiment);
  });
  for (std::string* file : {&text, &budgets}) *file = comm::broadcast(world, *file, 0);
  const std::string host = comm::host_place(world).host;
  collectively(world, [&] {
    if (world.rank() != 0) {
      experiment = shown(config::parse_experiment(text, path, {}, nullptr, heads));
    }
    if (!budgets.empty()) config::read_budgets(budgets, experiment);
    require_executed(experiment);
    config::check_ranks(experiment, world.size());
    config::check_faults(experiment, 0, experiment.run.steps);
    require_device(experiment);
    require_dtype(experiment.run.dtype, kernels::supports_bfloat16(), host);
  });
  if (world.rank() == 0) tell_unused(unused);
  world.set_timeout(experiment.run.timeout);
  return experiment;
}

}  // namespace cadenza::app
