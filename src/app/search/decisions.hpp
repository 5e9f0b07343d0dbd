// SPDX-License-Identifier: Apache-2.0
// What attention.overlap: auto and attention.tolerance: auto come to, with their reasons.
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::app {

/// Ping-pong is taken where it is predicted to save at least this part of a step: rates say nothing
/// of what more and smaller kernels and messages cost.
inline constexpr double kLeastGain = 0.02;

struct Decisions {
  config::Overlap overlap = config::Overlap::none;  ///< never auto
  /// A line for each key that is auto: "overlap: ping_pong (auto: ...)".
  std::vector<std::string> lines;
};

/// Of an experiment with a layout and a placement; only cad has something to decide, with the
/// others an overlap that is auto is none. The overlap is decided once for a run, by the
/// predicted time of its first step; a tolerance is decided for each tick when it is planned, and
/// the line says what it is in the first tick. A function of its arguments alone, and of no step
/// but the first one: all ranks, and a run that is continued, come to the same.
Decisions decide(const config::Experiment& experiment, const data::Packer& packer,
                 const config::Machine& machine);

}  // namespace cadenza::app
