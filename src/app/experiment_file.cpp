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

config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads) {
  std::string text, model, budgets;
  config::UnusedKeys unused;
  config::Experiment experiment;
  collectively(world, [&] {
    if (world.rank() != 0) return;
    text = experiment_text(path);
    const auto read = [&](const std::string& file) {
      return model = config::read_model_config(file);
    };
    experiment = shown(config::parse_experiment(text, path, overrides, &unused, heads, read));
    budgets = budgets_text(experiment);
  });
  for (std::string* file : {&text, &model, &budgets}) *file = comm::broadcast(world, *file, 0);
  const std::string host = comm::host_place(world).host;
  collectively(world, [&] {
    if (world.rank() != 0) {
      const auto read = [&](const std::string&) { return model; };
      experiment = shown(config::parse_experiment(text, path, overrides, nullptr, heads, read));
    }
    if (!budgets.empty()) config::read_budgets(budgets, experiment);
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
