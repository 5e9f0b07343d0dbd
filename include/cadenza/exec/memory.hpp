// SPDX-License-Identifier: Apache-2.0
// What a rank will allocate for a step, from plans and programs alone: before anything runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// Rows that every trainer makes room for, even where its first microbatches are shorter.
std::int64_t usual_rows(const config::Experiment& experiment);

/// Positions of the rotation table: those of the longest document.
std::int64_t table_positions(const config::Experiment& experiment);

/// Bytes of a rank by what they are for: the kinds of the memory ledger.
struct MemoryEstimate {
  std::int64_t parameters = 0;  ///< with gradients and optimizer moments
  std::int64_t activations = 0;
  std::int64_t attention = 0;      ///< workspace of foreign rows, rotation table
  std::int64_t communication = 0;  ///< message buffers, buffers of NCCL
  std::int64_t nccl = 0;           ///< of `communication`: at most
  std::int64_t other = 0;          ///< of the libraries on a device
  std::int64_t gradients = 0;      ///< of `parameters`
  std::int64_t optimizer = 0;      ///< of `parameters`: moments
  std::int64_t total() const {
    return parameters + activations + attention + communication + other;
  }
  /// "activations 1.2 GB": the largest of them.
  std::string largest() const;

  MemoryEstimate& operator+=(const MemoryEstimate& more);
  MemoryEstimate& operator-=(const MemoryEstimate& less);
};
/// The larger one of each kind: buffers that grow and stay.
MemoryEstimate larger_of_each(const MemoryEstimate& a, const MemoryEstimate& b);

/// @param program  of the rank
/// @param ticks    of its pool
MemoryEstimate estimate_memory(const config::Experiment& experiment,
                               const program::StepShape& step_shape,
                               const program::Program& program,
                               std::span<const program::TickPlans> ticks);

/// What NCCL allocates on the device of a rank, at most, for the pairs that meet in these plans;
/// pairs that meet in later steps are added to them.
/// @param ticks  of its pool
std::int64_t nccl_bytes(const program::StepShape& step_shape, Rank rank,
                        std::span<const program::TickPlans> ticks);
/// Whether a run allocates that.
bool uses_nccl(const config::Experiment& experiment);

/// What a trainer needs whatever the plans are: no foreign rows, no messages of attention.
MemoryEstimate least_memory(const config::Experiment& experiment,
                            const program::StepShape& step_shape, Rank trainer);
/// The larger of the first and the last stage.
MemoryEstimate least_memory(const config::Experiment& experiment);

/// What a rank may use, and who says so.
struct MemoryLimit {
  std::int64_t bytes = 0;  ///< 0: not known
  std::string source;      ///< "run.memory"
};

/// run.memory or else, where tensors are on a device, that of the device.
MemoryLimit memory_limit(const config::Run& run, const MemoryLimit& device);

/// @throws Error(usage) where a rank needs more than that, naming what would help
void require_memory(const MemoryLimit& limit, Rank rank, const MemoryEstimate& memory);

}  // namespace cadenza::exec
