// SPDX-License-Identifier: Apache-2.0
// Checks of what single values cannot tell: values that do not fit each other, keys that belong to
// another choice.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// @throws Error(usage) for the first inconsistency, at the place of the value to change, with the
/// names of both keys and what would be valid.
void check_consistency(const Experiment& experiment, const Value& root,
                       HeadsOf heads = HeadsOf::model);

// Which key belongs to which choice.

/// Refuses a key whose value would change what is computed if only another choice did not ignore
/// it, such as attention.window with kind full. Keys that say no more than how it is computed are
/// ignored; UnusedKeys tells of them.
/// @throws Error(usage)
void refuse_strangers(const Experiment& experiment, const Value& root);

}  // namespace cadenza::config
