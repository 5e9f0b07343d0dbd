// SPDX-License-Identifier: Apache-2.0
// Values that fit their keys but not each other.
#pragma once

#include "cadenza/config/load.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// @throws Error(usage) for the first inconsistency, at the place of the value to change, with the
/// names of both keys and what would be valid.
void check_consistency(const Experiment& experiment, const Value& root,
                       HeadsOf heads = HeadsOf::model);

}  // namespace cadenza::config
