// SPDX-License-Identifier: Apache-2.0
// What a plan's attention takes at the rates of a machine, and its FLOPs before anything moved.
#pragma once

#include <span>
#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

struct Prediction {
  double lower_bound_seconds = 0;  ///< all work spread evenly over the pool, no transfer exposed
  double predicted_seconds = 0;  ///< slowest server's tasks plus the largest transfer of each stage
};

/// Of one task; of a sparse one what its pairs take that are expected to be computed.
double placed_seconds(const PlacedTask& placed, Pass pass, const cost::Rates& rates);
/// Returns the seconds of a kernel call that took `seconds` with `placed` as one more of its tasks;
/// the first task pays for the launch.
double with_task(double seconds, const PlacedTask& placed, Pass pass, const cost::Rates& rates);
/// What the tasks of a stage take, by rank: a launch where there are any, and each of them. For
/// usual ranks, whatever their capacity.
std::vector<double> task_seconds(const Stage& stage, int ranks, Pass pass,
                                 const cost::Rates& rates);

/// Forward pass of one layer of one tick.
Prediction predict(const Plan& plan, const cost::Pool& pool);

/// What one layer of a tick takes, both passes, from the plans of the tick: one, or those of both
/// halves in ping-pong. A stage of one plan begins where its messages are there, and results leave
/// when the server's tasks are done. In ping-pong the messages of a half travel while the other
/// half computes. Judged by the slowest rank and its busiest port.
double layer_seconds(std::span<const Plan> parts, const cost::Pool& pool);

/// FLOPs by rank where every query's attention is computed at the query's home.
std::vector<double> cost_at_home(const Workload& workload);

/// Largest of those over the rank's share of all: what placements start from. The shares are those
/// of the pool, or, with dedicated servers alone, of the trainers. 1 when nothing is to do.
double imbalance_at_home(const Workload& workload, const std::vector<double>& cost_per_rank);

}  // namespace cadenza::plan
