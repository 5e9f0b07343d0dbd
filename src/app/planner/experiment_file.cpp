// SPDX-License-Identifier: Apache-2.0
#include "app/planner/experiment_file.hpp"

#include <spdlog/spdlog.h>

#include "cadenza/base/error.hpp"
#include "cadenza/base/launcher.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::app {
std::string read_yaml(const std::string& path, const std::string& valid) {
  return read_text(path, {ExitCode::usage, path, valid, config::kMostYamlBytes});
}

std::string experiment_text(const std::string& path) {
  return read_yaml(path, "an experiment's YAML file");
}

std::string budgets_text(const config::Experiment& experiment) {
  const std::string& path = experiment.attention.sparse.budgets;
  return path.empty() ? ""
                      : read_yaml(path, "attention.sparse.budgets with a JSON file of budgets");
}

config::Machine load_machine(const config::Cluster& cluster) {
  if (cluster.machine.empty()) return {};
  const std::string text = read_yaml(
      cluster.machine, "cluster.machine with a machine's YAML file (inputs/machines has some)");
  return config::parse_machine(text, cluster.machine);
}

config::Experiment shown(config::Experiment experiment) {
  spdlog::debug("{}", config::to_yaml(experiment));
  return experiment;
}

void tell_unused(const config::UnusedKeys& unused) {
  if (launcher_rank() != 0) return;
  for (const std::string& line : unused.lines()) spdlog::warn("warning   {}", line);
}

config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides) {
  config::UnusedKeys unused;
  config::Experiment experiment = with_budgets(
      shown(config::parse_experiment(experiment_text(path), path, overrides, &unused)));
  tell_unused(unused);
  return experiment;
}

config::Experiment with_budgets(config::Experiment experiment) {
  const std::string budgets = budgets_text(experiment);
  if (!budgets.empty()) config::read_budgets(budgets, experiment);
  return experiment;
}

}  // namespace cadenza::app
