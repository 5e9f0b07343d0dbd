// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "app/planner/experiment_file.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// @throws Error(usage) for a layout that is planned and simulated but not executed
void require_executed(const config::Experiment& experiment);

/// Loads an experiment on all ranks: rank 0 reads the files, all parse the same texts and check
/// that the ranks can execute it. From then on, waits obey its run.timeout.
config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads = config::HeadsOf::model);

}  // namespace cadenza::app
