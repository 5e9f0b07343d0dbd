// SPDX-License-Identifier: Apache-2.0
// The settings of an experiment that decide the numbers in its checkpoints.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::model {

/// Of model, data, batch, optimizer; seed and run.steps. A setting that one side lacks, for it is
/// of another version, counts as its default.
/// @param stored  YAML of the experiment that wrote the checkpoint `path`
/// @throws Error(data) where it is none
std::vector<Difference> compare(const std::string& stored, const std::string& path,
                                const config::Experiment& asked);

/// The files whose contents differ.
/// @param stored   attribute of a checkpoint; what it does not tell of is not compared
/// @param changed  settings that differ: of a file that they name or read nothing is said
std::vector<Difference> compare(const std::string& stored, const config::FileContents& asked,
                                std::span<const Difference> changed);

/// Whether another value makes another model, which parameters are of no use to.
bool is_of_model(const std::string& key);

}  // namespace cadenza::model
