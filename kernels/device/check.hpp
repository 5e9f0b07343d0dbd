// SPDX-License-Identifier: Apache-2.0
// Checks of CUDA calls.
#pragma once

#include <cuda_runtime.h>

#include "cadenza/base/error.hpp"

namespace cadenza::kernels::device {

/// @throws Error(internal) if a call failed; `what` says what for
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", what, cudaGetErrorString(status));
}

}  // namespace cadenza::kernels::device
