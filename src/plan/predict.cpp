// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cadenza/plan/cost.hpp"

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
  for (double cost : plan.cost_per_rank) {
    total += cost;
    slowest = std::max(slowest, cost);
  }
  Prediction prediction;
  if (total > 0) {
    const double even = total / static_cast<double>(plan.workload.servers.size());
    prediction.lower_bound_seconds = even / model.attention_flops_per_second;
  }
  prediction.predicted_seconds = slowest / model.attention_flops_per_second;
  for (const Stage& stage : plan.stages) {
    const auto bytes = static_cast<double>(largest_transfer(stage, plan.workload.ranks));
    prediction.predicted_seconds += bytes / model.bytes_per_second;
  }
  return prediction;
}

}  // namespace cadenza::plan
