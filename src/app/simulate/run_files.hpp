// SPDX-License-Identifier: Apache-2.0
// The run folder of a simulation: metrics and traces.
#pragma once

#include <memory>

#include "app/planner/commands.hpp"

namespace cadenza::app {

/// What --output and --trace ask for. @return null: nothing is written. @throws Error(usage, data)
std::unique_ptr<SimulationFiles> make_run_files(const Simulation& simulation,
                                                const CommandLine& line, std::int64_t steps);

}  // namespace cadenza::app
