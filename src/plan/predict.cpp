// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cadenza/plan/cost.hpp"
#include "plan/workload/token_order.hpp"

namespace cadenza::plan {
namespace {

/// Bytes through the busiest rank of a stage; a rank sends and receives at the same time.
std::int64_t largest_transfer(const Stage& stage, int ranks) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks), 0);
  std::vector<std::int64_t> received(static_cast<std::size_t>(ranks), 0);
  for (const Move& move : stage.moves) {
    sent[static_cast<std::size_t>(move.from)] += move.bytes;
    received[static_cast<std::size_t>(move.to)] += move.bytes;
  }
  std::int64_t largest = 0;
  for (std::int64_t bytes : sent) largest = std::max(largest, bytes);
  for (std::int64_t bytes : received) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace

Prediction predict(const Plan& plan, const CostModel& model) {
  double total = 0;
  double slowest = 0;
  for (const Rank server : plan.workload.servers) {
    const double cost = plan.cost_per_rank[static_cast<std::size_t>(server)];
    total += cost;
    slowest = std::max(slowest, cost / usual_ranks(plan.workload.capacity(server)));
  }
  Prediction prediction;
  if (total > 0) {
    const double even = total / usual_ranks(plan.workload.pool_capacity());
    prediction.lower_bound_seconds = even / model.attention_flops_per_second;
  }
  prediction.predicted_seconds = slowest / model.attention_flops_per_second;
  for (const Stage& stage : plan.stages) {
    const auto bytes = static_cast<double>(largest_transfer(stage, plan.workload.ranks));
    prediction.predicted_seconds += bytes / model.bytes_per_second;
  }
  return prediction;
}

std::vector<double> cost_at_home(const Workload& workload) {
  const AttentionShape& shape = workload.shape;
  const double flops_per_pair = 4.0 * shape.head_dim * shape.heads;
  std::vector<double> cost(static_cast<std::size_t>(workload.ranks), 0.0);
  for (const Home& home : workload.homes) {
    const auto document = static_cast<std::size_t>(home.document);
    const Range q = intersect(home.tokens, workload.queries_of(document));
    if (q.empty()) continue;
    const std::int64_t pairs = mask_pairs(workload.order, workload.lengths[document], q);
    cost[static_cast<std::size_t>(home.rank)] += flops_per_pair * static_cast<double>(pairs);
  }
  return cost;
}

double imbalance_at_home(const Workload& workload, const std::vector<double>& cost_per_rank) {
  std::vector<char> counts(cost_per_rank.size(), 0);
  for (Rank server : workload.servers) counts[static_cast<std::size_t>(server)] = 1;
  const bool trainers_serve =
      std::all_of(workload.homes.begin(), workload.homes.end(),
                  [&](const Home& home) { return counts[static_cast<std::size_t>(home.rank)]; });
  double largest = 0;  // for a usual rank
  double total = 0;
  std::int64_t capacity = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if ((counts[rank] != 0) != trainers_serve) continue;
    const std::int64_t mine = workload.capacity(static_cast<Rank>(rank));
    largest = std::max(largest, cost_per_rank[rank] / usual_ranks(mine));
    total += cost_per_rank[rank];
    capacity += mine;
  }
  return total > 0 ? largest * usual_ranks(capacity) / total : 1.0;
}

}  // namespace cadenza::plan
