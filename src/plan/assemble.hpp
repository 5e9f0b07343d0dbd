// SPDX-License-Identifier: Apache-2.0
// From "who computes which queries" to a whole plan: moves and tasks of a stage in one order, so
// that equal work gives equal plans byte for byte, and partial outputs merged at home.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

inline void sort_stage(Stage& stage) {
  const auto move_key = [](const Move& m) {
    return std::tuple(m.from, m.to, m.what, m.document, m.tokens.begin, m.heads.begin);
  };
  const auto task_key = [](const PlacedTask& p) {
    const Task& t = p.task;
    return std::tuple(p.server, t.document, t.q.begin, t.k.begin, t.heads.begin);
  };
  std::sort(stage.moves.begin(), stage.moves.end(),
            [&](const Move& a, const Move& b) { return move_key(a) < move_key(b); });
  std::sort(stage.tasks.begin(), stage.tasks.end(),
            [&](const PlacedTask& a, const PlacedTask& b) { return task_key(a) < task_key(b); });
}

/// Every output row of workload.queries with its owner and all servers that compute a part of it,
/// as few rectangles as their edges allow: ascending by (document, head, token).
std::vector<Merge> make_merges(const Workload& workload, const Homes& homes,
                               const std::vector<Stage>& stages);

// From "who computes which queries" to a whole plan: what most placements end with.

/// Queries of a document on one server, with the keys of `k` that they see and all heads.
struct Assignment {
  int document = 0;
  Range q;  ///< tokens of the document
  Rank server = 0;
  Range k = {};  ///< empty: all keys that the queries see
};

/// Sorts by (document, query, key) and joins neighbours on the same server whose keys are the same
/// or touch. What sees all keys has an empty `k` again.
void coalesce(const Workload& workload, std::vector<Assignment>& assignments);

/// The keys of an assignment that its queries see.
Range keys_of(const Workload& workload, const Assignment& assignment);

/// The plan of at most three stages: 0, tasks whose rows are all at home on their server; 1, Q, K
/// and V travel (each row once per destination, whatever tasks share it there, none that is at home
/// there) and the remaining tasks run; 2, O and LSE return. Stage 1 and 2 exist where something
/// moves. Only workload.queries are computed; tokens are in the order of the text.
/// @param gathers_all  every rank of a context group gets the keys that queries of all its ranks
/// see
Plan assemble(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments,
              bool gathers_all = false);

}  // namespace cadenza::plan
