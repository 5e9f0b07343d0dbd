// SPDX-License-Identifier: Apache-2.0
// From an experiment to the simulated time of its first step, as far as the time of one input goes.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::fuzz {

/// Four tensor and data ranks; what a machine or other files are tried on.
config::Experiment four_ranks();

/// The text of a config.json, whatever its path: inputs read no files.
std::string small_model(const std::string& path, const std::string& valid);

/// Opens the corpus of an accepted experiment, and simulates a step where the experiment is small.
/// Experiments that need other files are left alone.
void go_on(const config::Experiment& experiment);

/// Corpus, packing, plan, programs and the simulated time of the first step: a finite number.
void simulate_step(const config::Experiment& experiment, const config::Machine& machine);

}  // namespace cadenza::fuzz
