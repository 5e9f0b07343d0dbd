// SPDX-License-Identifier: Apache-2.0
// attention.split_keys: tasks that see only some of their keys; their partial outputs merge.
#pragma once

#include <vector>

#include "plan/cad/loads.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// Third phase, fewer bytes: a document that is whole on one rank and computed by others as well
/// is cut anew into tiles of queries x keys with the same shares, where fewer bytes travel then, no
/// server becomes slower than the slowest one is, and no rank's transfers become larger than the
/// largest are. So the plan's cost does not rise.
/// @param assignments  sorted by document; whole keys
void tile_documents(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
                    const Residency& residency, std::vector<Assignment>& assignments);

/// Fourth phase, where blocks of queries were too coarse (a document of few blocks and many
/// servers): servers above the tolerance give a part of a task's keys to the one with the least
/// load.
/// @return whether the slowest server is faster now
bool cut_keys(const Workload& workload, std::int64_t block, Loads& loads,
              std::vector<Assignment>& assignments);

}  // namespace cadenza::plan
