// SPDX-License-Identifier: Apache-2.0
// A step before it runs: plans and programs of all ranks, the memory they need and the time they
// should take.
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

struct Forecast {
  std::vector<program::TickPlans> ticks;
  std::vector<program::Program> programs;
  std::vector<exec::MemoryEstimate> memory;  ///< by rank
  simulate::Result timeline;
  Rank fullest = 0;  ///< the rank that needs the most memory

  std::int64_t peak_bytes() const { return memory[static_cast<std::size_t>(fullest)].total(); }
  std::vector<plan::Plan> forward_plans() const;
};

/// On the machine that the experiment's cluster block names.
/// @throws Error(usage) where a placement makes an invalid plan, Error(communication) where
/// programs deadlock
Forecast forecast(const config::Experiment& experiment, const data::Batch& batch);

/// What reports print beside the plans. Memory is that of pool 0.
plan::StepNotes notes_of(const config::Experiment& experiment, const data::Batch& batch,
                         const Forecast& step);

/// "step: predicted 1.2 s, no less than 1.0 s (...)".
std::string describe(const Forecast& step);

}  // namespace cadenza::app
