// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {

/// The text of an experiment, a machine or a sweep.
/// @param valid  what the path should name: "an experiment's YAML file"
/// @throws Error(usage)
std::string read_yaml(const std::string& path, const std::string& valid);

/// A line for every key that the experiment ignores, from the process that users hear.
void tell_unused(const config::UnusedKeys& unused);

/// Reads and checks the experiment in this process.
config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// With the budgets of heads that attention.sparse.budgets names. @throws Error(usage)
config::Experiment with_budgets(config::Experiment experiment);

/// Rank 0 reads the file, all ranks parse the same text and check that they are as many as it asks
/// for. From then on waits obey its run.timeout.
config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads = config::HeadsOf::model);

}  // namespace cadenza::app
