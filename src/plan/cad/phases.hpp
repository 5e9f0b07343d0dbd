// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cadenza/config/experiment.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/document_shard.hpp"
#include "plan/cad/items.hpp"
#include "plan/cad/loads.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// The first phase: items of whole pairs go from servers above the mean to servers below it, the
/// largest balance per byte first. Starts from the homes; updates `loads` and `residency`; returns
/// who computes what.
/// - two_sided: the server that lacks most takes, from those above the tolerance first, until all
///   are within it or no pair fits;
/// - one_sided: the rule of DistCA's code: every server below the mean takes once, those that
/// lacked
///   most at first come first, until it lacks no more than the tolerance. Givers are not bounded.
std::vector<Assignment> balance_pairs(const Workload& workload,
                                      const std::vector<DocumentShard>& shards,
                                      const config::Attention& attention, Loads& loads,
                                      Residency& residency);

/// The second phase, where whole pairs were too coarse: runs of blocks from the ends of assignments
/// move from servers above the tolerance (to servers below it, from any above the mean) as long as
/// the gap between the two shrinks. Afterwards no server is further above the mean than its
/// tolerance or its cheapest block, whichever is more.
void refine_blocks(const Workload& workload, std::int64_t block, Loads& loads, Residency& residency,
                   std::vector<Assignment>& assignments);

// attention.split_keys: tasks that see only some of their keys; their partial outputs merge.

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
