// SPDX-License-Identifier: Apache-2.0
// Makes a whole plan from assignments of queries to servers: adds the moves, sorts moves and tasks
// so that equal work gives equal plans byte for byte, and lists the merges at home.
#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

inline bool is_empty(const Stage& stage) {
  return stage.moves.empty() && stage.tasks.empty();
}

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

/// The merges of all output rows of workload.queries: owner and all servers that compute a part, in
/// as few rectangles as their edges allow, ascending by (document, head, token).
std::vector<Merge> make_merges(const Workload& workload, const Homes& homes,
                               const std::vector<Stage>& stages);

// --- From assignments to a plan, the last step of most placements ---

/// Queries of a document that one server computes, with the keys of `k` that they see, all heads.
struct Assignment {
  int document = 0;
  Range q;  ///< tokens of the document
  Rank server = 0;
  Range k = {};  ///< empty: all keys that the queries see
};

/// Sorts by (document, query, key) and joins neighbours on the same server whose keys are equal or
/// touch. Clears `k` where it holds all keys that the queries see.
void coalesce(const Workload& workload, std::vector<Assignment>& assignments);

/// The keys of an assignment that its queries see.
Range keys_of(const Workload& workload, const Assignment& assignment);

/// Makes a plan of at most three stages. Stage 0 runs the tasks whose rows are all at home on their
/// server. Stage 1 moves Q, K and V (each row once per destination, for all its tasks, unless it is
/// at home there) and runs the remaining tasks. Stage 2 returns O and LSE. Stages 1 and 2 exist
/// only where something moves. Only workload.queries are computed; tokens are in the order of the
/// text.
/// @param gathers_all  whether every rank of a context group gets the keys that queries of all its
///                     ranks see
Plan assemble(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments,
              bool gathers_all = false);

/// The same without totals and merges: stages 0, 1 and 2, unsorted, some perhaps empty.
std::array<Stage, 3> straight_stages(const Workload& workload, const Homes& homes,
                                     const std::vector<Assignment>& assignments,
                                     bool gathers_all = false);

}  // namespace cadenza::plan
