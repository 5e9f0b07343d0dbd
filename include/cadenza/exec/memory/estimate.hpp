// SPDX-License-Identifier: Apache-2.0
// Estimates the memory of a rank for a step from plans and programs alone, before anything runs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/shape/activations.hpp"
#include "cadenza/model/shape/parameter_table.hpp"
#include "cadenza/model/shape/part.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::exec {

/// Returns the layers that a trainer holds, and its tensor slice.
model::ModelPart model_part(const config::Experiment& experiment, const program::Layout& layout,
                            Rank trainer);

/// Rows for which every trainer makes room, even if its first microbatches are shorter.
std::int64_t usual_rows(const config::Experiment& experiment);

/// Of a trainer's activations.
model::Capacity capacity_of(const config::Experiment& experiment,
                            const program::StepShape& step_shape, Rank trainer, std::int64_t rows,
                            int buffers);

/// Positions of the rotation table: as many as the longest document has.
std::int64_t table_positions(const config::Experiment& experiment);

/// Bytes of a rank by purpose, as in the memory ledger.
struct MemoryEstimate {
  std::int64_t parameters = 0;  ///< with gradients and optimizer
  std::int64_t activations = 0;
  std::int64_t attention = 0;      ///< workspace of foreign rows, rotation table
  std::int64_t communication = 0;  ///< message buffers, buffers of NCCL
  std::int64_t nccl = 0;           ///< NCCL's part of `communication`: an upper bound
  std::int64_t other = 0;          ///< of libraries on a device
  std::int64_t gradients = 0;      ///< gradients' part of `parameters`
  std::int64_t optimizer = 0;      ///< master weights' and moments' part of `parameters`
  std::int64_t total() const {
    return parameters + activations + attention + communication + other;
  }
  /// Names the largest: "activations 1.2 GB".
  std::string largest() const;

  MemoryEstimate& operator+=(const MemoryEstimate& more);
  MemoryEstimate& operator-=(const MemoryEstimate& less);
};
/// The larger one of each kind: buffers that grow and stay.
MemoryEstimate larger_of_each(const MemoryEstimate& a, const MemoryEstimate& b);

/// @param program  of the rank
/// @param tick_plans  of the rank's pool
MemoryEstimate estimate_memory(const config::Experiment& experiment,
                               const program::StepShape& step_shape,
                               const program::Program& program,
                               std::span<const program::TickPlans> tick_plans);
/// The same of many ranks whose pools have the same plans, such as the stages of a pipeline.
std::vector<MemoryEstimate> estimate_memory(const config::Experiment& experiment,
                                            const program::StepShape& step_shape,
                                            std::span<const program::Program> programs,
                                            std::span<const program::TickPlans> tick_plans);

/// Returns an upper bound on what NCCL allocates on a rank's device for the pairs of ranks that
/// meet in these plans. Pairs that meet in later steps add to it.
/// @param tick_plans  of the rank's pool
std::int64_t nccl_bytes(const program::StepShape& step_shape, Rank rank,
                        std::span<const program::TickPlans> tick_plans);
/// Whether a run uses NCCL, and so allocates nccl_bytes().
bool uses_nccl(const config::Experiment& experiment);

/// Memory that a trainer needs under any plan: without foreign rows and attention messages.
MemoryEstimate least_memory(const config::Experiment& experiment,
                            const program::StepShape& step_shape, Rank trainer);
/// The larger of the first and the last stage.
MemoryEstimate least_memory(const config::Experiment& experiment);

/// What stages of one model hold whatever their plans are, reckoned once for all layouts that agree
/// in it. Several threads may ask.
class StageHoldings {
 public:
  struct Counts {
    int microbatches = 0;  ///< whose activations are held (program::buffers_of_stage)
    int streams = 0;       ///< between stages (program::stream_buffers_of_stage)
  };
  Counts buffers(const program::StepShape& step_shape, int stage);
  /// Its names are those of any stage that holds as much.
  const model::ParameterTable& parameters(const config::Model& model, const model::ModelPart& part);

 private:
  std::mutex mutex_;
  std::map<std::array<int, 6>, Counts> buffers_;  ///< by all that a schedule depends on
  std::map<std::array<int, 5>, model::ParameterTable> parameters_;  ///< by the size of a part
};

/// The same, for many layouts.
MemoryEstimate least_memory(const config::Experiment& experiment, StageHoldings& stages);

/// Memory that a rank may use, and the source of this limit.
struct MemoryLimit {
  std::int64_t bytes = 0;  ///< 0: not known
  std::string source;      ///< "run.memory"
};

/// Returns run.memory if given; otherwise, if tensors are on a device, the limit of the device.
MemoryLimit memory_limit(const config::Run& run, const MemoryLimit& device);

/// @throws Error(usage) if a rank needs more than the limit; the message says what would help
void require_memory(const MemoryLimit& limit, Rank rank, const MemoryEstimate& memory);
/// The same of a step's plan, where there is a limit.
void require_memory(const MemoryLimit& limit, Rank rank, const config::Experiment& experiment,
                    const program::StepPlan& plan);

}  // namespace cadenza::exec
