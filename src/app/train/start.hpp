// SPDX-License-Identifier: Apache-2.0
// Where a run starts: at step 0, or where a checkpoint says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {

struct Start {
  std::string checkpoint;  ///< path of the file; empty: the parameters are new
  std::int64_t step = 0;   ///< the first to run
};

/// What a checkpoint says of sparse attention, for an experiment that has it.
SparseEstimates estimates_in(const model::CheckpointReader& checkpoint,
                             const config::Experiment& experiment);

/// "sparse    step 8 is planned by steps up to 6"; empty where attention is dense.
std::string describe_weights(const config::Experiment& experiment, const Start& start,
                             const SparseEstimates& estimates);

/// Finds the checkpoint to start from and reads it. Collective; rank 0 says what was passed over,
/// and in which settings the run that wrote the checkpoint was another.
/// @param from  a checkpoint, or a folder: the first of found_checkpoints() that is sound; if the
///              folder has files itself, of earlier runs only those with the experiment's settings;
///              empty: step 0
/// @param contents  of the experiment's files
/// @param read  reads a checkpoint's numbers on every rank; throws Error(data) where one is damaged
/// @throws CollectiveError(data) unless it holds the experiment's model; CollectiveError(usage)
/// where run.steps are done already
Start find_start(comm::Communicator& world, const std::string& from,
                 const config::Experiment& experiment, const config::FileContents& contents,
                 const std::function<void(const std::string& path)>& read);

}  // namespace cadenza::app
