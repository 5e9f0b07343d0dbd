// SPDX-License-Identifier: Apache-2.0
// From "who computes which queries" to a whole plan: what every causal placement ends with.
#pragma once

#include <vector>

#include "cadenza/plan/plan.hpp"
#include "homes.hpp"

namespace cadenza::plan {

/// Queries of a document, with all keys they see and all heads, on one server.
struct Assignment {
  int document = 0;
  Range q;  ///< tokens of the document
  Rank server = 0;
};

/// Sorts by (document, query) and joins neighbours on the same server.
void coalesce(std::vector<Assignment>& assignments);

/// The plan of at most three stages: 0, tasks whose rows are all at home on their server; 1, Q, K
/// and V travel (each row once per destination, none that is at home there) and the remaining tasks
/// run; 2, O and LSE return. Stage 1 and 2 exist where something moves.
Plan assemble(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments);

}  // namespace cadenza::plan
