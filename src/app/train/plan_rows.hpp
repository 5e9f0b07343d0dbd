// SPDX-License-Identifier: Apache-2.0
// Rows about a step's plans, for traces.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::app {

/// Returns the attention tasks of a step's forward plans, by the rank of the pool that computes
/// them. Ranks in the tasks are those of the pool.
std::vector<std::vector<trace::PlannedTask>> planned_tasks(
    std::int64_t step, const program::StepShape& step_shape,
    std::span<const program::TickPlans> tick_plans);

/// Replaces ranks of the pool by ranks of the run.
std::vector<trace::PlannedTask> in_world(std::vector<trace::PlannedTask> tasks,
                                         const program::Layout& layout, int pool);

/// Returns a world rank's work in the plans, stage by stage, in the passes that run them: work of
/// one layer, seconds at the rates of the pool. Empty for a rank that does not serve.
std::vector<trace::PlannedStage> planned_stages(std::int64_t step,
                                                const program::StepShape& step_shape,
                                                std::span<const program::TickPlans> tick_plans,
                                                Rank rank, const cost::Pool& pool);

}  // namespace cadenza::app
