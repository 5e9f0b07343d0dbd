// SPDX-License-Identifier: Apache-2.0
// What traces say of a step's plans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

/// The attention tasks of a step's forward plans by the rank of the pool that computes them. Ranks
/// in them are the pool's.
std::vector<std::vector<trace::PlannedTask>> planned_tasks(
    std::int64_t step, const program::StepShape& step_shape,
    std::span<const program::TickPlans> ticks);

/// The same tasks with the ranks of the run.
std::vector<trace::PlannedTask> in_world(std::vector<trace::PlannedTask> tasks,
                                         const program::Layout& layout, int pool);

/// What the plans ask of a world rank, stage by stage, in the passes that run them: one layer's
/// work, seconds at the rates of the pool. Nothing of a rank that does not serve.
std::vector<trace::PlannedStage> planned_stages(std::int64_t step,
                                                const program::StepShape& step_shape,
                                                std::span<const program::TickPlans> ticks,
                                                Rank rank, const cost::Pool& pool);

}  // namespace cadenza::app
