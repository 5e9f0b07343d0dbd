// SPDX-License-Identifier: Apache-2.0
// Placement `all_gather`: every rank of a context group gets all keys and values of the group, also
// those that its queries do not see, as the collective brings them (Llama 3, arXiv 2407.21783).
#include <algorithm>

#include "cadenza/plan/placement.hpp"
#include "plan/merges.hpp"
#include "plan/order.hpp"
#include "plan/workload/homes.hpp"

namespace cadenza::plan {
namespace {

void add_tasks(const Workload& workload, const Home& home, Range q, Stage& stage) {
  const Mask mask = workload.mask_of(home.document);
  const Task rectangle{home.document, q, mask.keys(q), {0, workload.shape.heads}};
  mask.for_each_task(rectangle, [&](const Task& task) {
    stage.tasks.push_back(place_task(workload, home.rank, task));
  });
}

/// Rows that queries see, to all other ranks of the group.
void gather(const Workload& workload, const Home& home, Range tokens, Stage& stage) {
  const Rank first = home.rank / workload.context * workload.context;
  const Range heads{0, workload.shape.kv_heads};
  for (Rank to = first; to < first + workload.context; ++to) {
    if (to == home.rank) continue;
    for (Tensor what : {Tensor::k, Tensor::v}) {
      stage.moves.push_back(
          make_move(workload.shape, home.rank, to, what, home.document, tokens, heads));
    }
  }
}

}  // namespace

Plan all_gather(const Workload& workload) {
  const Homes homes(workload);
  Plan plan;
  plan.workload = workload;
  plan.stages.resize(2);
  for (const Home& home : workload.homes) {
    const Range queries = workload.queries_of(static_cast<std::size_t>(home.document));
    const Range q = intersect(home.tokens, queries);
    const Mask mask = workload.mask_of(home.document);
    if (!q.empty()) {
      const bool local = homes.holds(home.rank, home.document, mask.keys(q));
      add_tasks(workload, home, q, plan.stages[local ? 0 : 1]);
    }
    const Range seen = intersect(home.tokens, mask.keys(queries));
    if (!seen.empty()) gather(workload, home, seen, plan.stages[1]);
  }
  if (plan.stages[1].moves.empty()) plan.stages.pop_back();
  for (Stage& stage : plan.stages) sort_stage(stage);
  plan.merges = make_merges(workload, homes, plan.stages);
  add_totals(plan);
  return plan;
}

}  // namespace cadenza::plan
