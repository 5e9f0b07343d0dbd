// SPDX-License-Identifier: Apache-2.0
// All that a search may look at, by bounds that need no plans.
#pragma once

#include <vector>

#include "app/planner/search/group.hpp"
#include "app/planner/search/room.hpp"
#include "app/planner/search/typical_steps.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

/// The layouts and placements of an experiment with placement auto: in larger microbatches where
/// these lower a bound, and with the numbers of dedicated servers that have the least bounds. What
/// does not fit, whatever its plans are, is settled.
/// @throws Error(usage) where no layout fits the model and the batch
std::vector<Group> list_groups(const config::Experiment& given, TypicalSteps& steps, Room& room);

}  // namespace cadenza::app
