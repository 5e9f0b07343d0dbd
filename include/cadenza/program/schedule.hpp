// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: the order in which a stage runs the passes of its microbatches.
#pragma once

#include <vector>

#include "cadenza/base/task.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::program {

using cadenza::Pass;

/// A pass of one microbatch through one group of a stage's layers.
struct ScheduleEntry {
  Pass pass = Pass::forward;
  int microbatch = 0;
  int chunk = 0;
  friend bool operator==(const ScheduleEntry&, const ScheduleEntry&) = default;
};

struct PipelineShape {
  int stages = 1;
  int chunks = 1;        ///< groups of layers per stage; above 1 only with the interleaved schedule
  int microbatches = 1;  ///< per data-parallel rank
};

/// One forward, one backward (PipeDream-Flush; Megatron-LM, arXiv 2104.04473, section 2.2): stage s
/// runs stages - s - 1 forward passes ahead. With several chunks it is interleaved (section 2.2.2
/// there); the number of microbatches must then be a multiple of the stages.
std::vector<ScheduleEntry> one_f_one_b(const PipelineShape& shape, int stage);

/// A tick of the phase-aligned schedule (DistCA, arXiv 2510.18121, figure 8), in one phase.
struct Tick {
  Pass phase = Pass::forward;
  std::vector<int> microbatch;  ///< by stage; -1: it has none and only serves attention
};

/// The phase-aligned schedule: stages - 1 forward ticks, a forward and a backward tick for each
/// microbatch, stages - 1 backward ticks; 2 (microbatches + stages - 1) in all, as in 1F1B. Stage s
/// holds up to min(microbatches, 2 (stages - s) - 1) microbatches at a time, where 1F1B holds
/// stages - s.
std::vector<Tick> phase_aligned(const PipelineShape& shape);

}  // namespace cadenza::program
