// SPDX-License-Identifier: Apache-2.0
// Identity of the device on which this process computes.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::kernels {

struct DeviceIdentity {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"; on a host, what Kokkos calls it
  std::string uuid;  ///< of the device or its slice (MIG); empty: tensors are on the host
  int multiprocessors = 0;
  int clock_mhz = 0;       ///< highest clock of its multiprocessors
  std::int64_t bytes = 0;  ///< size of its memory
};

DeviceIdentity device_identity();

/// Returns the bytes of the device's memory that nobody uses, this process included; 0: tensors are
/// on the host.
std::int64_t free_device_memory();

/// Explains, before Kokkos is started, why this build's device cannot be used; empty: it can.
std::string missing_device();

/// Returns missing_device()'s message for a driver older than the program's CUDA (12040: 12.4).
std::string describe_old_driver(int driver, int program);

/// Returns missing_device()'s message for a device whose compute capability (90: 9.0) is below the
/// least that the program supports; empty: it is supported.
std::string describe_old_device(const std::string& name, int capability, int least);

}  // namespace cadenza::kernels
