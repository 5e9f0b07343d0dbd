// SPDX-License-Identifier: Apache-2.0
// The limit that rates are compared with: the best library's product of two square matrices,
// oneDNN's on hosts (limit.cpp), cuBLAS' on devices (device_limit.cpp).
#pragma once

#include "cadenza/kernels/device.hpp"
#include "measure.hpp"

namespace cadenza::bench {

inline constexpr std::int64_t kLimitSize = kDeviceIsCuda ? 8192 : 2048;

/// The product of {"dtype": "float32" | "bfloat16", "size": n (default kLimitSize)} matrices. Of
/// oneDNN's entries (plain, with the right factor packed beforehand, and for float32 sgemm), with
/// the threads of OpenMP, the one that is fastest here; `report` names it.
std::unique_ptr<Work> make_limit(const Json& request);

}  // namespace cadenza::bench
