// SPDX-License-Identifier: Apache-2.0
// Ranks, layers, documents and counts are signed; containers are indexed with unsigned numbers.
#pragma once

#include <cstddef>
#include <type_traits>

namespace cadenza {

/// A number that is never negative, or an enumerator, as an index: v[at(rank)].
template <typename Number>
requires(std::is_integral_v<Number> || std::is_enum_v<Number>) constexpr std::size_t
    at(Number number) {
  return static_cast<std::size_t>(number);
}

}  // namespace cadenza
