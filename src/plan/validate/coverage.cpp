// SPDX-License-Identifier: Apache-2.0
// Rule `coverage`. If the mask of every task is the document's on its rectangle, no two tasks share
// an allowed pair, and together they have as many pairs as the queries may see, then every pair is
// covered exactly once: no pair is looked at alone, so million-token documents are checked in
// microseconds.
#include <algorithm>

#include "plan/workload/token_order.hpp"
#include "plan/validate/rules.hpp"

namespace cadenza::plan {
namespace {

/// Whether two tasks of one document compute an allowed pair of the same head twice.
bool share_pairs(const Task& a, const Task& b) {
  if (!a.heads.overlaps(b.heads)) return false;
  const Range q = intersect(a.q, b.q);
  const Range k = intersect(a.k, b.k);
  return allowed_pairs(q, k, common(a.band, b.band)) > 0;
}

void check_disjoint(const std::vector<const PlacedTask*>& tasks, Faults& faults) {
  std::vector<const PlacedTask*> open;  // those whose queries reach the present one
  for (const PlacedTask* next : tasks) {
    std::erase_if(open,
                  [&](const PlacedTask* task) { return task->task.q.end <= next->task.q.begin; });
    for (const PlacedTask* other : open) {
      if (share_pairs(other->task, next->task)) {
        faults.add("coverage", "computed twice: {} and {}", describe(*other), describe(*next));
      }
    }
    open.push_back(next);
  }
}

}  // namespace

void check_coverage(const Workload& workload, const DocumentView& view, Faults& faults) {
  const auto document = static_cast<std::size_t>(view.document);
  const std::int64_t length = workload.lengths[document];
  const Range queries = workload.queries_of(document);
  std::vector<const PlacedTask*> tasks;
  std::int64_t pairs = 0;
  for (const auto& [stage, placed] : view.tasks) {
    const Task& task = placed->task;
    if (!is_masked(workload, task)) {
      faults.add("coverage", "{}: query i sees {}, which is not the document's mask there",
                 describe(*placed), describe(task.band));
    }
    if (!queries.contains(task.q)) {
      faults.add("coverage", "{}: not among the plan's queries {}", describe(*placed),
                 describe(queries));
    }
    pairs += allowed_pairs(task) * task.heads.size();
    tasks.push_back(placed);
  }
  std::sort(tasks.begin(), tasks.end(), [](const PlacedTask* a, const PlacedTask* b) {
    return a->task.q.begin < b->task.q.begin;
  });
  check_disjoint(tasks, faults);
  const std::int64_t expected = mask_pairs(workload, view.document, queries) * workload.shape.heads;
  if (pairs != expected) {
    faults.add("coverage",
               "document {} of {} tokens, queries {}: tasks compute {} pairs, the mask allows {}",
               view.document, length, describe(queries), pairs, expected);
  }
}

}  // namespace cadenza::plan
