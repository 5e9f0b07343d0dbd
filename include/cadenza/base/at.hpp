// SPDX-License-Identifier: Apache-2.0
// Converts signed ranks, layers, documents and counts to the unsigned index of a container.
#pragma once

#include <cstddef>
#include <type_traits>

namespace cadenza {

/// `number` (an enumerator or an integer that is not negative) as an index: v[at(rank)].
template <typename Number>
requires(std::is_integral_v<Number> || std::is_enum_v<Number>) constexpr std::size_t
    at(Number number) {
  return static_cast<std::size_t>(number);
}

}  // namespace cadenza
