// SPDX-License-Identifier: Apache-2.0
// What a plan costs in time: FLOPs and bytes over rates. Rates are nominal until a machine is
// calibrated; the balance that placements strive for depends on FLOPs alone.
#pragma once

#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

struct CostModel {
  double attention_flops_per_second = 5e10;  ///< one rank; nominal: one host core
  double bytes_per_second = 5e9;             ///< into or out of one rank; nominal: shared memory
  double dense_flops_per_second = 5e10;      ///< matrix products of the layers, like attention's
  double latency_seconds = 2e-6;             ///< of a message
};

struct Prediction {
  double lower_bound_seconds = 0;  ///< all work spread evenly over the pool, no transfer exposed
  double predicted_seconds = 0;  ///< slowest server's tasks plus the largest transfer of each stage
};

/// Forward pass of one layer of one tick.
Prediction predict(const Plan& plan, const CostModel& model);

/// FLOPs by rank where every query's attention is computed at the query's home.
std::vector<double> cost_at_home(const Workload& workload);

/// Largest of those over the rank's share of all: what placements start from. The shares are those
/// of the pool, or, with dedicated servers alone, of the trainers. 1 when nothing is to do.
double imbalance_at_home(const Workload& workload, const std::vector<double>& cost_per_rank);

}  // namespace cadenza::plan
