// SPDX-License-Identifier: Apache-2.0
// A step estimated from a part of it: some of its data-parallel ranks, microbatches and layers.
// Replicas are statistically alike and layers are the same, so a part says how much a layer of a
// microbatch takes beyond the bound, and the bound says the rest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

/// How much of a step is looked at, at least.
struct SampleSize {
  std::int64_t ranks = 0;         ///< that exchange messages with each other, of a pool
  std::int64_t microbatches = 0;  ///< of a data-parallel rank, by stage
  friend bool operator==(const SampleSize&, const SampleSize&) = default;
};

struct Sample {
  config::Experiment experiment;  ///< with fewer data-parallel ranks and tokens
  data::Batch batch;
  double turns = 1;  ///< microbatches + stages - 1 of the step over that of the sample
  double parts = 1;  ///< microbatches of the step over those of the sample
  /// "8 of 512 data ranks, 1 of 4 microbatches".
  std::string text;
};

/// Chooses data-parallel ranks and microbatches. Of ranks that exchange only gradients the slowest,
/// since they end the step. Ranks of a pool are sorted by attention and cut into equal parts; one
/// of each part is chosen, and all of these have about the mean attention, since what is beyond the
/// bound grows with it. So are microbatches.
/// @param experiment  with a layout
/// @param attention   of each microbatch of `batch`, in any unit
Sample sample_of(const config::Experiment& experiment, const data::Batch& batch,
                 std::span<const double> attention, SampleSize size);

struct Estimate {
  double seconds = 0;
  double operations = 0;  ///< that a clock would go through in the whole step
};

/// @param sample  of the whole step
/// @param tick_plans  plans of the sample
/// @param bound   of the whole step (simulate::LeastTime), seconds
Estimate estimate(const Sample& sample, std::span<const program::TickPlans> tick_plans,
                  double bound, const config::Machine& machine);

/// The memory that plans add to the least (exec::least_memory) of the sample's fullest rank.
exec::MemoryEstimate memory_of_plans(const Sample& sample,
                                     std::span<const program::TickPlans> tick_plans);

}  // namespace cadenza::app
