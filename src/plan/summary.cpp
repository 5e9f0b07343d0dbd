// SPDX-License-Identifier: Apache-2.0
#include "summary.hpp"

namespace cadenza::plan {

Summary summarize(const std::vector<Plan>& ticks) {
  Summary summary;
  if (ticks.empty()) return summary;
  summary.total.workload.ranks = ticks.front().workload.ranks;
  summary.total.workload.servers = ticks.front().workload.servers;
  add_totals(summary.total);  // zeros
  for (const Plan& tick : ticks) {
    for (std::size_t rank = 0; rank < tick.cost_per_rank.size(); ++rank) {
      summary.total.cost_per_rank[rank] += tick.cost_per_rank[rank];
      summary.total.bytes_sent_per_rank[rank] += tick.bytes_sent_per_rank[rank];
    }
    const Prediction prediction = predict(tick, CostModel{});
    summary.prediction.lower_bound_seconds += prediction.lower_bound_seconds;
    summary.prediction.predicted_seconds += prediction.predicted_seconds;
  }
  return summary;
}

}  // namespace cadenza::plan
