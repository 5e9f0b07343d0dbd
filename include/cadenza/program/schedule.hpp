// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: in which order a stage runs the forward and backward passes of its
// microbatches.
#pragma once

#include <vector>

#include "cadenza/base/pass.hpp"
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
  int chunks = 1;        ///< groups of layers per stage; a power of the interleaved schedule alone
  int microbatches = 1;  ///< per data-parallel rank
};

/// One forward, one backward (PipeDream-Flush; Megatron-LM, arXiv 2104.04473, section 2.2): stage s
/// runs stages - s - 1 forward passes ahead. With several chunks: interleaved (its section 2.2.2),
/// for microbatches that are a multiple of the stages.
std::vector<ScheduleEntry> one_f_one_b(const PipelineShape& shape, int stage);

/// What the stages do in a tick of the phase-aligned schedule (DistCA, arXiv 2510.18121, figure 8):
/// all are in the same phase. -1: the stage has no microbatch and serves attention alone.
struct Tick {
  Pass phase = Pass::forward;
  std::vector<int> microbatch;  ///< by stage
};

/// stages - 1 forward ticks, a forward and a backward tick for each microbatch, stages - 1 backward
/// ticks: 2 (microbatches + stages - 1) in all, as many as 1F1B has. Stage s holds up to
/// min(microbatches, 2 (stages - s) - 1) microbatches at a time, where 1F1B holds stages - s.
std::vector<Tick> phase_aligned(const PipelineShape& shape);

}  // namespace cadenza::program
