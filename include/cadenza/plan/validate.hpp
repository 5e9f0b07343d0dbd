// SPDX-License-Identifier: Apache-2.0
// The validator: every plan of every placement is held to the same rules.
#pragma once

#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Broken rules of a forward plan, each as one line that begins with the rule's name; empty: the
/// plan is valid. Rules (docs/plan.md):
/// - coverage: tasks cover every (query, key, head) that the mask allows to workload.queries
///   exactly once, nothing else; each task's mask is the document's, in the plan's order of tokens
/// - presence: a task's inputs are on its server when its stage starts; every move's source holds
///   what it sends, at home or since an earlier stage; nothing is delivered twice, to where it is
///   at home or to its own sender
/// - need: a task of the receiver reads every row of an input that it gets, or it sends it on; not
///   of keys and values where attention.gather is all
/// - merging: every partial output reaches the query's owner exactly once and is in the merges
/// - totals: bytes and costs on the plan equal the sums over its moves and tasks
std::vector<std::string> violations(const Plan& forward);

/// Rule `mirror`: `backward` has the forward plan's tasks on the same servers, moves each task's
/// inputs there (those that servers keep are there already) and each partial gradient back to its
/// owner exactly once, after the server's last task with it.
std::vector<std::string> mirror_violations(const Plan& forward, const Plan& backward);

/// Throws Error(usage) with the first broken rule, if any.
void require_valid(const Plan& forward, const Plan& backward);

}  // namespace cadenza::plan
