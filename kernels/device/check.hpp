// SPDX-License-Identifier: Apache-2.0
// Calls of CUDA that may fail.
#pragma once

#include <cuda_runtime.h>

#include "cadenza/base/error.hpp"

namespace cadenza::kernels::device {

/// @throws Error(internal)  where a call failed; `what` it was for
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", what, cudaGetErrorString(status));
}

}  // namespace cadenza::kernels::device
