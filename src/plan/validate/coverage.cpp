// SPDX-License-Identifier: Apache-2.0
// Rule `coverage`. Every pair is covered exactly once if the mask of every task is the document's
// on its rectangle, no two tasks share an allowed pair, and together they have as many pairs as the
// queries see. As no pair is visited, million-token documents are checked in microseconds.
#include <algorithm>
#include <cmath>

#include "cadenza/base/at.hpp"
#include "plan/validate/rules.hpp"
#include "plan/workload/sharding.hpp"

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
  std::vector<const PlacedTask*> open;  // tasks whose queries reach those of `next`
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

// --- Rule `totals`: the plan's costs and bytes are those of its tasks and moves ---

namespace {

/// Whether two costs are equal. They are sums in double, which differ by rounding only.
bool same_cost(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

void check_parts(const Plan& plan, const PassTensors& pass, Faults& faults) {
  const AttentionShape& shape = plan.workload.shape;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      const double cost =
          place_task(plan.workload, placed.server, placed.task).cost * pass.cost_ratio;
      if (!same_cost(placed.cost, cost)) {
        faults.add("totals", "{}: cost {}, it takes {}", describe(placed), placed.cost, cost);
      }
    }
    for (const Move& move : stage.moves) {
      const std::int64_t bytes = move_bytes(shape, move.what, move.tokens, move.heads);
      if (move.bytes != bytes) {
        faults.add("totals", "{}: {} bytes, it has {}", describe(move), move.bytes, bytes);
      }
    }
  }
}

}  // namespace

void check_totals(const Plan& plan, const PassTensors& pass, Faults& faults) {
  check_parts(plan, pass, faults);
  const auto ranks = static_cast<std::size_t>(plan.workload.ranks);
  if (plan.cost_per_rank.size() != ranks || plan.bytes_sent_per_rank.size() != ranks) {
    faults.add("totals", "costs of {} ranks and bytes of {} ranks; valid: {} ranks",
               plan.cost_per_rank.size(), plan.bytes_sent_per_rank.size(), ranks);
    return;
  }
  std::vector<double> costs(ranks, 0.0);
  std::vector<std::int64_t> bytes(ranks, 0);
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      costs[at(placed.server)] += placed.cost;
    }
    for (const Move& move : stage.moves) bytes[at(move.from)] += move.bytes;
  }
  for (const Stage& round : plan.index) {
    for (const Move& move : round.moves) bytes[at(move.from)] += move.bytes;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (!same_cost(plan.cost_per_rank[rank], costs[rank])) {
      faults.add("totals", "rank {}: cost {}, but its tasks cost {}", rank,
                 plan.cost_per_rank[rank], costs[rank]);
    }
    if (plan.bytes_sent_per_rank[rank] != bytes[rank]) {
      faults.add("totals", "rank {}: {} bytes sent, but its moves have {}", rank,
                 plan.bytes_sent_per_rank[rank], bytes[rank]);
    }
  }
}

}  // namespace cadenza::plan
