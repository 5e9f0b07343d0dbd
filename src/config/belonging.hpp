// SPDX-License-Identifier: Apache-2.0
// Which key belongs to which choice.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Refuses a key whose value would change what is computed if only another choice did not ignore
/// it, such as attention.window with kind full. Keys that say no more than how it is computed are
/// ignored; UnusedKeys tells of them.
/// @throws Error(usage)
void refuse_strangers(const Experiment& experiment, const Value& root);

}  // namespace cadenza::config
