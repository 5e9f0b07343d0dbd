// SPDX-License-Identifier: Apache-2.0
// Where a run starts: at step 0, from a checkpoint, or from a folder of Hugging Face's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {

struct Start {
  std::string path;              ///< of the checkpoint or folder; empty: new parameters
  std::int64_t step = 0;         ///< the first step to run
  bool is_folder = false;        ///< of Hugging Face's
  bool parameters_only = false;  ///< the optimizer starts anew
};

/// Says where a run starts: "PATH, step 8".
std::string describe(const Start& start);

/// Returns a checkpoint's estimates of sparse attention, if the experiment's attention is sparse.
SparseEstimates estimates_in(const model::CheckpointReader& checkpoint,
                             const config::Experiment& experiment);

/// Describes the estimates: "sparse    step 8 is planned by steps up to 6"; empty if attention is
/// dense.
std::string describe_weights(const config::Experiment& experiment, const Start& start,
                             const SparseEstimates& estimates);

/// Finds the checkpoint to start from and reads it. Collective; rank 0 reports skipped checkpoints,
/// and settings that differ from those of the run that wrote it.
/// @param from  a checkpoint; a folder of tensors of Hugging Face's; or another folder: the first
/// sound one of found_checkpoints(); if the folder itself has files, those of earlier runs must
/// have the experiment's settings; empty: step 0
/// @param contents  of the experiment's files
/// @param read  reads its numbers on every rank; throws Error(data) if it is damaged
/// @throws CollectiveError(data) unless it holds the experiment's model; CollectiveError(usage) if
/// run.steps are already done, unless it is evaluated
Start find_start(comm::Communicator& world, const std::string& from,
                 const config::Experiment& experiment, const config::FileContents& contents,
                 const std::function<void(const Start& start)>& read);

}  // namespace cadenza::app
