// SPDX-License-Identifier: Apache-2.0
// Which keys there are, and which one was probably meant.
#pragma once

#include "config/value.hpp"

namespace cadenza::config {

/// Throws Error(usage) for the first key, top down, that a `File` (Experiment, Machine, HeadBudget)
/// does not know; it names the nearest valid one and all of its block.
template <typename File>
void check_keys(const Value& root);

}  // namespace cadenza::config
