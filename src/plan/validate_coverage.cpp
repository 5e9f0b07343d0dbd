// SPDX-License-Identifier: Apache-2.0
// Rule `coverage`. If no task reaches outside the mask, no two tasks share an allowed pair, and
// together they have as many pairs as the mask, then every pair is covered exactly once: no pair is
// looked at alone, so million-token documents are checked in microseconds.
#include <algorithm>

#include "validate_rules.hpp"

namespace cadenza::plan {
namespace {

/// Whether two tasks of one document compute an allowed pair of the same head twice.
bool share_pairs(const Task& a, const Task& b) {
  const Range q = intersect(a.q, b.q);
  const Range k = intersect(a.k, b.k);
  if (q.empty() || k.empty() || !a.heads.overlaps(b.heads)) return false;
  if (a.rule == Rule::full && b.rule == Rule::full) return true;
  return k.begin < q.end;  // the last query sees the first key
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
  std::vector<const PlacedTask*> tasks;
  std::int64_t pairs = 0;
  for (const auto& [stage, placed] : view.tasks) {
    const Task& task = placed->task;
    if (task.rule == Rule::full && task.k.end > task.q.begin + 1) {
      faults.add("coverage", "{}: rule full reaches keys after their query", describe(*placed));
    }
    pairs += allowed_pairs(task.q, task.k, task.rule) * task.heads.size();
    tasks.push_back(placed);
  }
  std::sort(tasks.begin(), tasks.end(), [](const PlacedTask* a, const PlacedTask* b) {
    return a->task.q.begin < b->task.q.begin;
  });
  check_disjoint(tasks, faults);
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(view.document)];
  const std::int64_t expected = length * (length + 1) / 2 * workload.shape.heads;
  if (pairs != expected) {
    faults.add("coverage", "document {} of {} tokens: tasks compute {} pairs, the mask allows {}",
               view.document, length, pairs, expected);
  }
}

}  // namespace cadenza::plan
