// SPDX-License-Identifier: Apache-2.0
// `attention.placement: auto`: a search over layouts and placements.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::app {

struct Choice {
  config::Experiment experiment;  ///< with a layout and a placement
  std::string explanation;  ///< a table of the best candidates and why the first one won; empty
                            ///< where the experiment names its placement
};

/// With placement auto: of every way to lay the experiment's trainers out as data x pipeline x
/// tensor x context, with every placement that takes it, the one with the least predicted time for
/// the first step that fits run.memory. Otherwise the experiment as it is. Pure: all ranks choose
/// the same.
/// @throws Error(usage) where none fits, naming the least memory any of them needs
Choice choose_layout(const config::Experiment& experiment, const data::Packer& packer);

}  // namespace cadenza::app
