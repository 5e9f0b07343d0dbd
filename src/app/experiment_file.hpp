// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {

/// Returns the text of an experiment, machine or sweep file.
/// @param valid  describes a valid path: "an experiment's YAML file"
/// @throws Error(usage)
std::string read_yaml(const std::string& path, const std::string& valid);

/// Prints a line for every key that the experiment ignores, from the process that users hear.
void tell_unused(const config::UnusedKeys& unused);

/// Reads and checks the experiment in this process.
config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// Adds the budgets of heads from the file of attention.sparse.budgets. @throws Error(usage)
config::Experiment with_budgets(config::Experiment experiment);

/// @throws Error(usage) for a layout that is planned and simulated but not executed
void require_executed(const config::Experiment& experiment);

/// Loads an experiment on all ranks: rank 0 reads the files, all parse the same texts and check
/// that the ranks can execute it. From then on, waits obey its run.timeout.
config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads = config::HeadsOf::model);

}  // namespace cadenza::app
