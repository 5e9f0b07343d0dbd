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

/// Whether what a query (cudaEventQuery, cudaStreamQuery) asked for has ended.
/// @throws Error(internal) as check() does
inline bool has_ended(cudaError_t status, const char* what) {
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // so that the next launch does not report it
    return false;
  }
  check(status, what);
  return true;
}

}  // namespace cadenza::kernels::device
