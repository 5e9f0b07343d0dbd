// SPDX-License-Identifier: Apache-2.0
// The settings under which parameters were trained, compared with those of an experiment.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::model {

/// Compares the settings of model, data, batch, optimizer, seed and run.steps. A setting that one
/// side lacks, because it is of another version, counts as its default.
/// @param stored  YAML of the experiment that wrote the checkpoint `path`
/// @throws Error(data) if it is not YAML of an experiment
std::vector<Difference> compare(const std::string& stored, const std::string& path,
                                const config::Experiment& asked);

/// Returns the files whose contents differ.
/// @param stored   attribute of a checkpoint; files missing in it are not compared
/// @param changed  settings that differ: files that they name or read are skipped
std::vector<Difference> compare(const std::string& stored, const config::FileContents& asked,
                                std::span<const Difference> changed);

/// Whether another value means another model, for which the parameters are of no use.
bool is_of_model(const std::string& key);

}  // namespace cadenza::model
