// SPDX-License-Identifier: Apache-2.0
// Rule `totals`: what the plan says it costs is what its moves and tasks cost.
#include <algorithm>
#include <cmath>

#include "plan/validate/rules.hpp"

namespace cadenza::plan {
namespace {

/// Costs are sums of integers in double: orders of summation differ by rounding alone.
bool same_cost(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

void check_parts(const Plan& plan, const Pass& pass, Faults& faults) {
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

void check_totals(const Plan& plan, const Pass& pass, Faults& faults) {
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
      costs[static_cast<std::size_t>(placed.server)] += placed.cost;
    }
    for (const Move& move : stage.moves) bytes[static_cast<std::size_t>(move.from)] += move.bytes;
  }
  for (const Stage& round : plan.index) {
    for (const Move& move : round.moves) bytes[static_cast<std::size_t>(move.from)] += move.bytes;
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
