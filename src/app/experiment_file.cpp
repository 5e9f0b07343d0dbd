// SPDX-License-Identifier: Apache-2.0
#include "app/experiment_file.hpp"

#include <spdlog/spdlog.h>

#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kExperiment = "an experiment's YAML file";

void require_device(const config::Experiment& experiment) {
  const bool wants_cuda = experiment.run.device == config::DeviceKind::cuda;
  if (wants_cuda == kDeviceIsCuda) return;
  fail(ExitCode::usage, "run.device: found {}; valid: {} (this program was built for it)",
       wants_cuda ? "cuda" : "host", kDeviceIsCuda ? "cuda" : "host");
}

std::string budgets_text(const config::Experiment& experiment) {
  const std::string& path = experiment.attention.sparse.budgets;
  return path.empty() ? ""
                      : read_yaml(path, "attention.sparse.budgets with a JSON file of budgets");
}

config::Experiment shown(config::Experiment experiment) {
  spdlog::debug("{}", config::to_yaml(experiment));
  return experiment;
}

}  // namespace

std::string read_yaml(const std::string& path, const std::string& valid) {
  return read_text(path, {ExitCode::usage, path, valid, config::kMostYamlBytes});
}

void tell_unused(const config::UnusedKeys& unused) {
  if (comm::launcher_rank() != 0) return;
  for (const std::string& line : unused.lines()) spdlog::warn("warning   {}", line);
}

config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides) {
  config::UnusedKeys unused;
  config::Experiment experiment = with_budgets(
      shown(config::parse_experiment(read_yaml(path, kExperiment), path, overrides, &unused)));
  tell_unused(unused);
  return experiment;
}

config::Experiment with_budgets(config::Experiment experiment) {
  const std::string budgets = budgets_text(experiment);
  if (!budgets.empty()) config::read_budgets(budgets, experiment);
  return experiment;
}

void require_executed(const config::Experiment& experiment) {
  if (experiment.parallel.shard == config::Shard::parameters) {
    fail(ExitCode::usage,
         "parallel.shard: found parameters, which only plan, simulate and sweep know; valid here: "
         "none, optimizer");
  }
  const config::Software& software = experiment.cluster.software;
  if (software == config::Software{}) return;
  fail(ExitCode::usage,
       "cluster.software: found {}, whose steps only plan, simulate and sweep predict; valid here: "
       "cadenza",
       software.name);
}

config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads) {
  std::string text, budgets;  // of the whole experiment, which rank 0 reads for all
  config::UnusedKeys unused;
  config::Experiment experiment;
  collectively(world, [&] {
    if (world.rank() != 0) return;
    experiment = shown(
        config::parse_experiment(read_yaml(path, kExperiment), path, overrides, &unused, heads));
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
