// SPDX-License-Identifier: Apache-2.0
// Value tree -> typed fields, each value in its range.
#pragma once

#include "cadenza/config/machine.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Fills an experiment from a tree whose keys are known. Keys that are not there keep their
/// defaults.
/// @throws Error(usage): a required key is missing; a value of the wrong type or out of range.
Experiment read_experiment(const Value& root);

/// The same for a machine.
Machine read_machine(const Value& root);

/// ... for a head; keys that are not there stay as in `usual`.
HeadBudget read_budget(const Value& head, const std::string& path, const HeadBudget& usual);

}  // namespace cadenza::config
