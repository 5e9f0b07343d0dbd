// SPDX-License-Identifier: Apache-2.0
// What traces and metrics record of a step, run or simulated, and the remark for a sparse run in
// which no attention is sparse.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::app {

/// One line of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;
  program::StepResult result;  ///< NaN if the step was simulated
  std::int64_t tokens = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  /// FLOPs that the step needs / (seconds * measured matrix-product rate of all ranks)
  double model_flops_utilization = 0;
  /// FLOPs that all ranks executed / (seconds * the same rate)
  double hardware_flops_utilization = 0;
  double attention_imbalance = 1;  ///< max / mean of busy attention time over serving ranks
  /// sum over layers and passes of max / of mean
  double attention_imbalance_by_layer = 1;
  double attention_flops = 0;             ///< executed for core attention by all ranks
  double dense_attention_flops = 0;       ///< for all pairs that the mask allows
  std::int64_t bytes_moved = 0;           ///< attention messages of all ranks
  std::int64_t peak_memory_bytes = 0;     ///< largest rank
  std::optional<double> validation_loss;  ///< after the step's update; of steps with a validation
  std::optional<double> filled;           ///< best_fit: share of the microbatches' room with tokens
  std::optional<double> sparsity;  ///< share of the pairs of sparse documents that was left out
};

/// A rank's part of a step.
struct RankStep {
  std::int64_t attention_ns = 0;
  std::int64_t busy_ns = 0;
  std::int64_t wait_ns = 0;
  std::int64_t communication_ns = 0;
  /// Sum over layers and passes of the slowest rank's; the same on all ranks.
  std::int64_t slowest_attention_ns = 0;
  double flops = 0;            ///< executed
  double attention_flops = 0;  ///< executed in core attention
  std::int64_t bytes_sent = 0;
  std::int64_t peak_bytes = 0;  ///< memory
  std::int64_t step_ns = 0;
  std::int64_t signal = 0;     ///< signal that asks it to stop; 0: none
  std::int64_t clock_due = 0;  ///< 1: compare clocks again; rank 0's value counts

  /// Adds times, work and bytes; takes the larger peak; keeps its own signal and clock_due.
  RankStep& operator+=(const RankStep& step);
};

/// World ranks that compute attention tasks.
std::vector<Rank> attention_servers(const config::Experiment& experiment);

/// Returns largest / mean attention time of the ranks that serve attention; 1 if there was none.
double attention_imbalance(std::span<const RankStep> ranks, std::span<const Rank> servers);
/// Returns the imbalance if ranks wait for one another in every layer and pass: the sum of the
/// slowest times / the sum of the mean times.
double attention_imbalance_by_layer(const program::StepShape& step_shape,
                                    std::span<const RankStep> ranks, std::span<const Rank> servers);

/// Returns a step's line of metrics.jsonl, without loss, norm and learning rate.
/// @param ranks       by world rank
/// @param peak_flops  of all ranks together
StepMetrics step_metrics(const config::Experiment& experiment, const data::Batch& batch,
                         std::span<const RankStep> ranks, double peak_flops);

/// Describes: "1.2 M tokens/s  MFU 41.0 %  attention imbalance 1.050 (by layer 1.062)".
std::string describe(const StepMetrics& metrics);

/// Returns the table at the end of a run: time of each rank by use.
/// @param totals  by rank: sums over the steps
std::string summary_table(const std::vector<std::string>& roles, std::span<const RankStep> totals);

/// Returns the part of a step's commit record that depends only on the batch.
trace::StepRecord step_record(const config::Experiment& experiment, const data::Batch& batch);

/// Returns what a step found out about the recall of its sampled layer, by distance.
std::vector<trace::DistanceRecall> recall_rows(std::int64_t step,
                                               const program::StepResult::LayerRecall& sampled);

/// Returns a rank's place in the layout: what is known of it before it runs.
trace::RankInfo rank_info(const config::Experiment& experiment, Rank rank);

/// @param created_utc  equal on all ranks
trace::RunInfo run_info(const config::Experiment& experiment, const std::string& created_utc);

// --- A remark before a run with sparse attention ---

/// Explains why no attention of this run is sparse although its kind is; empty: some may be.
std::string never_sparse(const config::Experiment& experiment);

}  // namespace cadenza::app
