// SPDX-License-Identifier: Apache-2.0
// Contents of a buffer's rows, for hosts and devices.
#pragma once

#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels {

/// Heads of a buffer's rows, out of `all` heads of the attention.
KOKKOS_INLINE_FUNCTION Range held_heads(const Range& heads, std::int64_t all) {
  if (heads.begin < heads.end) return heads;
  return {0, all};
}

/// Text position of a token of a buffer of queries or keys.
template <typename Buffer>
KOKKOS_INLINE_FUNCTION std::int64_t position_of(const Buffer& buffer, std::int64_t token) {
  const std::int64_t begin = buffer.tokens.begin;
  const Positions& positions = buffer.positions;
  const std::int64_t first = positions.first < 0 ? begin : positions.first;
  const std::int64_t at = first + (token - begin) * positions.step;
  if (positions.run == 0) return at;
  return at + (at - first + first % positions.run) / positions.run * positions.gap;
}

/// Rows of a rotary table for rows of queries: row r takes `of(r)`. Rows of other tasks than the
/// map's may have no position in the table; they take its nearest row, and nobody reads them.
struct TableRows {
  std::int64_t first = 0;
  std::int64_t step = 0;
  std::int64_t last = 0;
  KOKKOS_INLINE_FUNCTION std::int64_t of(std::int64_t row) const {
    const std::int64_t at = first + row * step;
    return at < 0 ? 0 : at < last ? at : last;
  }
};

/// Returns the table rows for rows from `token` on, in a table of `count` positions.
template <typename Real>
KOKKOS_INLINE_FUNCTION TableRows table_rows(const QueryRows<Real>& buffer, std::int64_t token,
                                            const PositionMap& map, std::int64_t count) {
  return {map.first + map.step * position_of(buffer, token), map.step * buffer.positions.step,
          map.cap < count ? map.cap : count - 1};
}

}  // namespace cadenza::kernels
