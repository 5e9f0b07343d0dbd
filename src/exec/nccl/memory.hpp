// SPDX-License-Identifier: Apache-2.0
// What NCCL allocates on a device, at most: no call of it says so.
#pragma once

#include <cstdint>

#include "cadenza/exec/device_communicator.hpp"

namespace cadenza::exec::nccl {

/// Of one communicator.
/// @param ends  of connections: ranks that this one sends to, and ranks that it receives from
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends);

/// Ends that a rank has for the collectives of `ranks`.
std::int64_t ends_of_collectives(std::int64_t ranks);

}  // namespace cadenza::exec::nccl
