// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace cadenza {

/// What a group of ranks does together, once round a ring or, for few bytes, up and down a tree.
enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce };

}  // namespace cadenza
