// SPDX-License-Identifier: Apache-2.0
// Which keys there are, and which one was probably meant.
#pragma once

#include "value.hpp"

namespace cadenza::config {

/// Throws Error(usage) for the first key, top down, that a `File` (Experiment, Machine, HeadBudget)
/// does not know; it names the nearest valid one and all of its block.
template <typename File>
void check_keys(const Value& root);

/// Gives the keys of an experiment that had another name in earlier versions today's name. A --set
/// wins over the file whichever name it uses.
/// @throws Error(usage) where the file, or the --sets, give both names
void rename_old_keys(Value& root);

}  // namespace cadenza::config
