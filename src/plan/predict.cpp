// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include "cadenza/plan/predict.hpp"
#include "plan/workload/token_order.hpp"

namespace cadenza::plan {
namespace {

/// Seconds at the busiest rank; it sends and receives at the same time.
double largest_transfer(const Stage& stage, int ranks, const cost::Pool& pool) {
  std::vector<double> sent(static_cast<std::size_t>(ranks), 0.0);
  std::vector<double> received(static_cast<std::size_t>(ranks), 0.0);
  for (const Move& move : stage.moves) {
    const cost::Way way = pool.rates.way(pool.world_rank(move.from), pool.world_rank(move.to));
    const double seconds = static_cast<double>(move.bytes) / way.bytes_per_second;
    sent[static_cast<std::size_t>(move.from)] += seconds;
    received[static_cast<std::size_t>(move.to)] += seconds;
  }
  return std::max(std::ranges::max(sent), std::ranges::max(received));
}

}  // namespace

double placed_seconds(const PlacedTask& placed, Pass pass, const cost::Rates& rates) {
  if (placed.block == 0) return rates.task_seconds(placed.task, pass);
  const double pairs = forward_flops(placed.task, 1) / 4;  // of all heads
  return pairs * placed.kept * rates.sparse_pair(placed.block, pass);
}

std::vector<double> task_seconds(const Stage& stage, int ranks, Pass pass,
                                 const cost::Rates& rates) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks), 0.0);
  for (const PlacedTask& placed : stage.tasks) {
    double& server = seconds[static_cast<std::size_t>(placed.server)];
    if (server == 0) server = rates.launch_seconds();
    server += placed_seconds(placed, pass, rates);
  }
  return seconds;
}

Prediction predict(const Plan& plan, const cost::Pool& pool) {
  std::vector<double> servers(static_cast<std::size_t>(plan.workload.ranks), 0.0);
  Prediction prediction;
  for (const Stage& stage : plan.stages) {
    const std::vector<double> tasks =
        task_seconds(stage, plan.workload.ranks, Pass::forward, pool.rates);
    for (std::size_t rank = 0; rank < servers.size(); ++rank) servers[rank] += tasks[rank];
    prediction.predicted_seconds += largest_transfer(stage, plan.workload.ranks, pool);
  }
  const double all = std::accumulate(servers.begin(), servers.end(), 0.0);
  prediction.lower_bound_seconds = all / usual_ranks(plan.workload.pool_capacity());
  for (std::size_t rank = 0; rank < servers.size(); ++rank) {
    servers[rank] /= usual_ranks(plan.workload.capacity(static_cast<Rank>(rank)));
  }
  prediction.predicted_seconds += std::ranges::max(servers);
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
    const std::int64_t pairs = mask_pairs(workload, home.document, q);
    cost[static_cast<std::size_t>(home.rank)] +=
        flops_per_pair * static_cast<double>(pairs) *
        kept_share(workload, {home.document, q, {0, q.end}, {0, 1}});
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
