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

/// First phase: moves items of whole pairs from servers above the mean to servers below it, largest
/// balance per byte first. Starts from the homes, updates `loads` and `residency`, and returns the
/// assignments.
/// - two_sided: the server that lacks most takes, from servers above the tolerance first, until all
///   are within it or no pair fits;
/// - one_sided: the rule of DistCA's code. Servers below the mean take in turn, in the order of
///   their first deficits, each until it lacks no more than the tolerance. Givers are not bounded.
std::vector<Assignment> balance_pairs(const Workload& workload,
                                      const std::vector<DocumentShard>& shards,
                                      const config::Attention& attention, Loads& loads,
                                      Residency& residency);

/// Second phase, where whole pairs were too coarse: moves runs of blocks from the ends of
/// assignments, from servers above the tolerance (to servers below it, from any above the mean), as
/// long as the gap between the two shrinks. Afterwards no server is further above the mean than its
/// tolerance or its cheapest block, whichever is more.
void refine_blocks(const Workload& workload, std::int64_t block, Loads& loads, Residency& residency,
                   std::vector<Assignment>& assignments);

// --- attention.split_keys: tasks that see only some of their keys; their partial outputs merge ---

/// Third phase, for fewer bytes: cuts a document that lives on one rank and is computed by others
/// too into tiles of queries x keys with about the same shares. It does so only where fewer bytes
/// travel, no server becomes slower than the slowest is now, and no rank's transfers exceed the
/// largest now, so the plan's cost does not rise.
/// @param assignments  sorted by document; whole keys
void tile_documents(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
                    const Residency& residency, std::vector<Assignment>& assignments);

/// Fourth phase, where blocks of queries were too coarse (a document of few blocks and many
/// servers): servers above the tolerance give a part of a task's keys to the one that finishes
/// first.
/// @return whether all servers that were above the tolerance are now faster than the slowest was
bool cut_keys(const Workload& workload, std::int64_t block, Loads& loads,
              std::vector<Assignment>& assignments);

// --- The plan ---

/// As assemble(), but for more stages. Keys of a document that lives on several ranks go round a
/// ring of these, a hop for each stage, as in placement `dynamic`: no rank sends them to many
/// others, and tasks hide them. Other servers of the document get its keys straight from their
/// homes, and all servers Q of other ranks' rows, in stage 1. Tasks that need nothing of other
/// ranks are spread over the stages, so that messages have time to travel. Results return when
/// their ring has gone round, those of other servers at the end.
/// @param block  tokens of a block of queries, where tasks at home are cut
/// @param nodes  by rank: keys cross from node to node on all its ranks at once, then go round
/// inside it, or where they are gathered, to all its ranks
Plan staged_plan(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments,
                 std::int64_t block, std::vector<int> nodes, bool gathers);

}  // namespace cadenza::plan
