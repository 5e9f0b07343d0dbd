// SPDX-License-Identifier: Apache-2.0
// Which device this process computes on.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::kernels {

struct DeviceIdentity {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"; on a host, what Kokkos calls it
  std::string uuid;  ///< of the device, or of its slice (MIG); empty: tensors are on the host
  int multiprocessors = 0;
  int clock_mhz = 0;       ///< the highest of its multiprocessors
  std::int64_t bytes = 0;  ///< of its memory
};

DeviceIdentity device_identity();

/// Why this build's device cannot be used, before Kokkos is started; empty: it can.
std::string missing_device();

/// missing_device()'s words for a driver older than the program's CUDA (12040: 12.4) ...
std::string describe_old_driver(int driver, int program);

/// ... and for a device of a compute capability (90: 9.0) below the least that the program is for;
/// empty: it is not.
std::string describe_old_device(const std::string& name, int capability, int least);

}  // namespace cadenza::kernels
