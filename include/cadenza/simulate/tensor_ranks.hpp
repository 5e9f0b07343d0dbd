// SPDX-License-Identifier: Apache-2.0
// Which ranks of a tensor group a simulation has to follow.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// Whether all ranks of a tensor group do the same at the same time, so that the one at tensor
/// coordinate 0 can stand for them: the cluster does not vary, and each has the neighbours and the
/// share of an adapter that tensor coordinate 0 has.
bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const Costs& costs);

}  // namespace cadenza::simulate
