// SPDX-License-Identifier: Apache-2.0
// `attention.placement: auto`: a search over layouts, placements and ways to save memory.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::app {

struct Choice {
  config::Experiment experiment;  ///< with a layout and a placement
  std::string explanation;        ///< a ranked table of what was simulated and why the first one
                                  ///< won; empty where the experiment names its placement
  int simulated = 0;              ///< steps that the search ran a clock for
};

/// With placement auto: of all candidates (candidates.hpp) that fit into run.memory or, where that
/// is 0, into the machine's, the one with the least predicted time of the first step. A candidate
/// is simulated only while its bound (simulate::LeastTime) is less than the best step so far, with
/// cad and without, and at most kMostSimulated are. Otherwise the experiment as it is.
/// A function of its arguments alone: all ranks, on any host, choose the same.
/// @param progress  on stderr
/// @throws Error(usage) where none fits, naming the one that needs least
Choice choose_layout(const config::Experiment& experiment, const data::Packer& packer,
                     const config::Machine& machine, bool progress = false);

/// Fewer on more than 256 ranks, as plans and clocks take longer there: 8 on 2048 and more.
inline constexpr int kMostSimulated = 64;
inline constexpr int kFewestSimulated = 8;

}  // namespace cadenza::app
