// SPDX-License-Identifier: Apache-2.0
// Checks beyond single values: values that do not fit each other, keys that belong to another
// choice.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Checks that the values of an experiment fit each other.
/// @throws Error(usage) for the first inconsistency, at the place of the value to change, with the
/// names of both keys and what would be valid.
void check_consistency(const Experiment& experiment, const Value& root,
                       HeadsOf heads = HeadsOf::model);

// --- Keys that belong to a choice ---

/// Refuses a key that a choice ignores although its value should change the result, such as
/// attention.window with kind full. Keys that only change how the result is computed are ignored;
/// UnusedKeys reports them.
/// @throws Error(usage)
void refuse_strangers(const Experiment& experiment, const Value& root);

}  // namespace cadenza::config
