// SPDX-License-Identifier: Apache-2.0
// For the main() of programs whose tests compute on the build's device.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdio>
#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>
#endif

namespace cadenza::testing {

inline constexpr int kSkipped = 77;  ///< CTest's SKIP_RETURN_CODE

/// False, and says so, where a build for NVIDIA devices finds none.
inline bool device_is_here() {
#ifdef KOKKOS_ENABLE_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::puts("skipped: no NVIDIA device here");
  return false;
#else
  return true;
#endif
}

}  // namespace cadenza::testing
