// SPDX-License-Identifier: Apache-2.0
// What a run with sparse attention should know before it begins.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

/// Why no attention of this run is sparse, though its kind is; empty: some may be.
std::string never_sparse(const config::Experiment& experiment);

}  // namespace cadenza::app
