// SPDX-License-Identifier: Apache-2.0
// What a search has to do, in operations of a clock: the same on every host.
#pragma once

#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

using StepPlans = std::vector<program::TickPlans>;

/// Of plans and of the clocks that go through so many operations.
double work_of(const StepPlans& tick_plans, double operations);

/// Of the first sample, before its plans are made: entries by rank and source of keys.
double work_of_sample(const config::Experiment& e);

}  // namespace cadenza::app
