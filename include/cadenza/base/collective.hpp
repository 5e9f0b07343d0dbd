// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace cadenza {

/// Collectives of a group of ranks. They run round a ring once or, for few bytes, over a tree.
enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce };

}  // namespace cadenza
