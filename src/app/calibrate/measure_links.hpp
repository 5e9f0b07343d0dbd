// SPDX-License-Identifier: Apache-2.0
// Messages and collectives of ranks, as training sends them.
#pragma once

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Between ranks 0 and 1 the latency of small messages there and back and the bandwidth of large
/// ones both ways at once; over all ranks the rates of rings that gather and sum. Collective; needs
/// two ranks.
config::Link measure_link(comm::Communicator& world);

}  // namespace cadenza::app
