// SPDX-License-Identifier: Apache-2.0
// The validator: checks the plans of all placements by the same rules.
#pragma once

#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Lists the broken rules of a forward plan, one line each, beginning with the rule's name; empty
/// where the plan is valid. Rules (docs/plan.md):
/// - coverage: tasks cover every (query, key, head) that the mask allows to workload.queries
///   exactly once, nothing else; each task's mask is the document's, in the plan's order of tokens
/// - presence: a task's inputs are on its server when its stage starts; every move's source holds
///   the rows that it sends, at home or since an earlier stage; no row is delivered twice, to its
///   home or to its own sender
/// - need: the receiver of an input reads or sends on every row of it, except keys and values where
///   attention.gather is all
/// - merging: every partial output reaches the query's owner exactly once and is in the merges
/// - totals: bytes and costs in the plan equal the sums over its moves and tasks
std::vector<std::string> violations(const Plan& forward);

/// Checks rule `mirror`: `backward` has the forward plan's tasks on the same servers, moves each
/// task's inputs there (except those that servers keep) and each partial gradient back to its owner
/// exactly once, after the server's last task with it.
std::vector<std::string> mirror_violations(const Plan& forward, const Plan& backward);

/// Throws Error(usage) with the first broken rule, if any.
void require_valid(const Plan& forward, const Plan& backward);

}  // namespace cadenza::plan
