// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Returns the text of an experiment, machine or sweep file.
/// @param valid  describes a valid path: "an experiment's YAML file"
/// @throws Error(usage)
std::string read_yaml(const std::string& path, const std::string& valid);

/// Of an experiment.
std::string experiment_text(const std::string& path);

/// Returns the text of the file of attention.sparse.budgets; empty: none is named.
/// @throws Error(usage)
std::string budgets_text(const config::Experiment& experiment);

/// The machine file that cluster.machine names, relative to the working directory; nominal where it
/// names none. @throws Error(usage)
config::Machine load_machine(const config::Cluster& cluster);

/// Logs the experiment with all defaults (--verbose), and returns it.
config::Experiment shown(config::Experiment experiment);

/// Prints a line for every key that the experiment ignores, from the process that users hear.
void tell_unused(const config::UnusedKeys& unused);

/// Reads and checks the experiment in this process.
config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// Adds the budgets of heads from the file of attention.sparse.budgets. @throws Error(usage)
config::Experiment with_budgets(config::Experiment experiment);

}  // namespace cadenza::app
