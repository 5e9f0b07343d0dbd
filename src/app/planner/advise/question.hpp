// SPDX-License-Identifier: Apache-2.0
// The question of `cadenza advise` as an experiment.
#pragma once

#include <string>
#include <vector>

#include "app/planner/command_line.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

/// An experiment with placement auto that leaves every degree of parallelism open, in the type of
/// the machine's numbers.
/// @param overrides  of its keys
/// @throws Error(usage): an unknown name, with the known ones; a file that is broken or missing
config::Experiment experiment_of(const Question& question,
                                 const std::vector<std::string>& overrides);

/// Tokens of a sequence, of which every candidate's microbatch has a whole number: the asked one,
/// or what of it goes into a microbatch that an override makes smaller.
std::int64_t sequence_of(const Question& question, const config::Experiment& asked);

}  // namespace cadenza::app
