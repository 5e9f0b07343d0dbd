// SPDX-License-Identifier: Apache-2.0
// Where a run starts: at step 0, or where a checkpoint says.
#pragma once

#include <cstdint>
#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

struct Start {
  std::string checkpoint;  ///< path of the file; empty: the parameters are new
  std::int64_t step = 0;   ///< the first to run
};

/// @param from  a checkpoint, a folder of checkpoints or a run's folder (of both the newest that
///              can be read); empty: step 0
/// @throws Error(data) unless it holds the experiment's model; Error(usage) where run.steps are
/// done already
Start find_start(const std::string& from, const config::Experiment& experiment);

}  // namespace cadenza::app
