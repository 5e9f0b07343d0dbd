// SPDX-License-Identifier: Apache-2.0
// Messages between ranks 0 and 1, sent and received as training does.
#pragma once

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Latency of small messages there and back, bandwidth of large ones both ways at once. Collective;
/// needs two ranks.
config::Link measure_link(comm::Communicator& world);

}  // namespace cadenza::app
