// SPDX-License-Identifier: Apache-2.0
// What the rows of a buffer hold, for hosts and devices.
#pragma once

#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels {

/// Heads of a buffer's rows, of `all` that the attention has.
KOKKOS_INLINE_FUNCTION Range held_heads(const Range& heads, std::int64_t all) {
  if (heads.begin < heads.end) return heads;
  return {0, all};
}

/// Document position of a token of a buffer of queries.
template <typename Real>
KOKKOS_INLINE_FUNCTION std::int64_t position_of(const QueryRows<Real>& buffer, std::int64_t token) {
  const std::int64_t begin = buffer.tokens.begin;
  const std::int64_t first = buffer.positions.first < 0 ? begin : buffer.positions.first;
  return first + (token - begin) * buffer.positions.step;
}

}  // namespace cadenza::kernels
