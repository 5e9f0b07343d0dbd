// SPDX-License-Identifier: Apache-2.0
// Measuring the machine at hand: what training really runs, on all ranks at the same time.
#pragma once

#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Measures attention, matrix products, operations, copies and links for the experiment's model and
/// dtype, on as many ranks as `world` has, whatever its layout; copies and links need two. The
/// machine's `source` says how far predictions are from measurements that it was not made of.
/// Collective. A minute or two; rank 0 says how far it is.
template <typename Real>
config::Machine measure_machine(comm::Communicator& world, const config::Experiment& experiment);

}  // namespace cadenza::app
