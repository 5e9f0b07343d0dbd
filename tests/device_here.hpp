// SPDX-License-Identifier: Apache-2.0
// For the main() of programs whose tests compute on the build's device.
#pragma once

#include <cstdio>
#include <string>

#include "cadenza/kernels/device_identity.hpp"

namespace cadenza::testing {

inline constexpr int kSkipped = 77;  ///< CTest's SKIP_RETURN_CODE

/// False, and says so, where a build for NVIDIA devices finds none.
inline bool device_is_here() {
  const std::string why = kernels::missing_device();
  if (!why.empty()) std::printf("skipped: no NVIDIA device here: %s\n", why.c_str());
  return why.empty();
}

}  // namespace cadenza::testing
