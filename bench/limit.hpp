// SPDX-License-Identifier: Apache-2.0
// The limit that rates are compared with: the best library's product of two square matrices.
#pragma once

#include "measure.hpp"

namespace cadenza::bench {

inline constexpr std::int64_t kLimitSize = 2048;

/// oneDNN's product of {"dtype": "float32" | "bfloat16", "size": n (default kLimitSize)} matrices,
/// with the threads of OpenMP: of its entries (plain, with the right factor packed beforehand, and
/// for float32 sgemm) the one that is fastest here; `report` names it.
std::unique_ptr<Work> make_limit(const Json& request);

}  // namespace cadenza::bench
