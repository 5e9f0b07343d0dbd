// SPDX-License-Identifier: Apache-2.0
// Upper bounds on what NCCL allocates on a device: NCCL has no call that tells.
#pragma once

#include <cstdint>

#include "cadenza/exec/device_communicator.hpp"

namespace cadenza::exec::nccl {

/// Returns the bytes of one communicator's buffers, at most.
/// @param ends  ends of connections: ranks to which this rank sends plus ranks from which it
/// receives
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends);

/// Returns the number of connection ends of a rank for the collectives of `ranks`.
std::int64_t ends_of_collectives(std::int64_t ranks);

}  // namespace cadenza::exec::nccl
