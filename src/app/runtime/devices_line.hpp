// SPDX-License-Identifier: Apache-2.0
// What a run says of its devices, and which ranks share one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cadenza/kernels/device_identity.hpp"

namespace cadenza::app {

/// "NVIDIA H100 80GB HBM3 (132 multiprocessors, 79.6 GiB)"; where ranks differ, each with its
/// ranks.
/// @param devices  of every rank, in rank order
std::string describe_devices(std::span<const kernels::DeviceIdentity> devices);

/// Ranks of one device, of which there are several.
struct SharedDevice {
  std::string uuid;
  std::vector<int> ranks;
};

/// In the order of their first ranks. None on hosts.
std::vector<SharedDevice> shared_devices(std::span<const kernels::DeviceIdentity> devices);

/// "ranks 0-1 share device GPU-...; ranks 2-3 share device GPU-..."
std::string describe_sharing(std::span<const SharedDevice> shared);

}  // namespace cadenza::app
