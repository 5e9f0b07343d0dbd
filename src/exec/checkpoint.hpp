// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cadenza/base/sparse_density.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/program/layout.hpp"
#include "exec/collectives/gradients.hpp"

namespace cadenza::exec {

/// Gathers the parameters and moments of all trainers on rank 0, which writes them to `path`: a
/// checkpoint does not depend on the layout that wrote it. Collective over `trainers`; only rank 0
/// throws if writing fails.
template <typename Real>
void write_checkpoint(const config::Experiment& experiment, const program::Layout& layout,
                      comm::Communicator& trainers, const model::Parameters<Real>& parameters,
                      GradientReducer<Real>& gradients, const SparseEstimates& estimates,
                      const config::FileContents& contents, const std::string& path,
                      std::int64_t step);

}  // namespace cadenza::exec
