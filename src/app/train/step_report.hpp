// SPDX-License-Identifier: Apache-2.0
// What traces and metrics say of a step, whether it ran or was simulated, and a remark on sparse
// runs before they begin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/run_folder.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

/// A rank's part of a step.
struct RankStep {
  std::int64_t attention_ns = 0;
  std::int64_t busy_ns = 0;
  std::int64_t wait_ns = 0;
  std::int64_t communication_ns = 0;
  /// Of the slowest rank in each layer and pass, summed; the same on all ranks.
  std::int64_t slowest_attention_ns = 0;
  double flops = 0;            ///< executed
  double attention_flops = 0;  ///< ... for core attention
  std::int64_t bytes_sent = 0;
  std::int64_t peak_bytes = 0;  ///< of memory
  std::int64_t step_ns = 0;
  std::int64_t signal = 0;     ///< that asks it to stop; 0: none
  std::int64_t clock_due = 0;  ///< 1: clocks should be compared again; rank 0's counts

  /// Sums times, work and bytes; the peak is the larger one.
  RankStep& operator+=(const RankStep& step);
};

/// World ranks that compute attention tasks.
std::vector<Rank> attention_servers(const config::Experiment& experiment);

/// Largest over mean attention time of the ranks that serve attention; 1 when there was none.
double attention_imbalance(std::span<const RankStep> ranks, std::span<const Rank> servers);
/// The same where ranks wait for one another in every layer and pass: the time of the slowest in
/// each, summed, over that of the mean.
double attention_imbalance_by_layer(const program::StepShape& step_shape,
                                    std::span<const RankStep> ranks, std::span<const Rank> servers);

/// A step's line of metrics.jsonl, without loss, norm and learning rate.
/// @param ranks       by world rank
/// @param peak_flops  of all ranks together
StepMetrics step_metrics(const config::Experiment& experiment, const data::Batch& batch,
                         std::span<const RankStep> ranks, double peak_flops);

/// "1.2 M tokens/s  MFU 41.0 %  attention imbalance 1.050 (by layer 1.062)".
std::string describe(const StepMetrics& metrics);

/// The table at the end of a run: where each rank's time went.
/// @param totals  by rank: sums over the steps
std::string summary_table(const std::vector<std::string>& roles, std::span<const RankStep> totals);

/// What of a step's commit record the batch alone says.
trace::StepRecord step_record(const config::Experiment& experiment, const data::Batch& batch);

/// Where a rank stands in the layout: what is known of it before it runs anywhere.
trace::RankInfo rank_info(const config::Experiment& experiment, Rank rank);

/// @param created_utc  equal on all ranks
trace::RunInfo run_info(const config::Experiment& experiment, const std::string& created_utc);

// What a run with sparse attention should know before it begins.

/// Why no attention of this run is sparse, though its kind is; empty: some may be.
std::string never_sparse(const config::Experiment& experiment);

}  // namespace cadenza::app
