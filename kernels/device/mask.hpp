// SPDX-License-Identifier: Apache-2.0
// Decides which pairs of a tile of queries and keys count.
#pragma once

#include "fragment.hpp"
#include "units.hpp"

namespace cadenza::kernels::device {

inline constexpr float kInfinity = __builtin_huge_valf();

/// The pairs of a tile that count: queries and keys are numbered from the tile's first ones, so
/// that a few registers hold all.
struct Visible {
  int q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  int low = 0, high = 0;

  // `&` and `|`, since a comparison is cheaper than a branch around it.

  /// Whether every pair of queries [q, q + queries) and keys [k, k + keys) counts.
  CADENZA_DEVICE bool sees_all(int q, int queries, int k, int keys) const {
    return (q >= q_begin) & (q + queries <= q_end) & (k >= k_begin) & (k + keys <= k_end) &
           (k - (q + queries - 1) >= low) & (k + keys - 1 - q <= high);
  }
  /// Whether no pair counts.
  CADENZA_DEVICE bool sees_none(int q, int queries, int k, int keys) const {
    return (q >= q_end) | (q + queries <= q_begin) | (k >= k_end) | (k + keys <= k_begin) |
           (k + keys - 1 - q < low) | (k - (q + queries - 1) > high);
  }
  /// Whether the query sees one of the tile's `keys` keys.
  CADENZA_DEVICE bool sees_some(int query, int keys) const {
    const int first = k_begin > query + low ? k_begin : query + low;
    const int end = k_end < query + high + 1 ? k_end : query + high + 1;
    return (query >= q_begin) & (query < q_end) & (first < end) & (first < keys) & (end > 0);
  }
  /// Moves on to the tile that begins so many keys (or queries) later.
  CADENZA_DEVICE void pass_keys(int keys) {
    k_begin -= keys;
    k_end -= keys;
    low -= keys;
    high -= keys;
  }
  CADENZA_DEVICE void pass_queries(int queries) {
    q_begin -= queries;
    q_end -= queries;
    low += queries;
    high += queries;
  }
};

/// Returns the pairs of the tile whose first query and key are these.
CADENZA_DEVICE Visible visible_in(const Entry& entry, std::int64_t query, std::int64_t key) {
  return {clamped(entry.q_begin - query),   clamped(entry.q_end - query),
          clamped(entry.k_begin - key),     clamped(entry.k_end - key),
          clamped(entry.low + query - key), clamped(entry.high + query - key)};
}

/// Columns of a tile that a row sees: [begin, begin + size).
struct SeenColumns {
  int begin = 0;
  unsigned size = 0;
  CADENZA_DEVICE bool has(int column) const { return static_cast<unsigned>(column - begin) < size; }
  /// Renumbers the columns from column `first` on.
  CADENZA_DEVICE SeenColumns from(int first) const { return {begin - first, size}; }
};

CADENZA_DEVICE SeenColumns columns_between(bool row_counts, int begin, int end) {
  return {begin, row_counts && begin < end ? static_cast<unsigned>(end - begin) : 0u};
}
CADENZA_DEVICE SeenColumns keys_of(const Visible& of, int query) {
  const int begin = of.k_begin > query + of.low ? of.k_begin : query + of.low;
  const int end = of.k_end < query + of.high + 1 ? of.k_end : query + of.high + 1;
  return columns_between(query >= of.q_begin && query < of.q_end, begin, end);
}
CADENZA_DEVICE SeenColumns queries_of(const Visible& of, int key) {
  const int begin = of.q_begin > key - of.high ? of.q_begin : key - of.high;
  const int end = of.q_end < key - of.low + 1 ? of.q_end : key - of.low + 1;
  return columns_between(key >= of.k_begin && key < of.k_end, begin, end);
}

/// Sets sums that a thread's two rows do not see to `value`. @param seen  seen(half), of a row
template <int kTiles, typename Thread, typename Seen>
CADENZA_DEVICE void apply_mask(const Thread& thread, const Seen& seen, float value,
                               float (&sums)[kTiles][4]) {
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half) {
    const auto of_row = seen(half);
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int column = tile * 8 + sum_column(thread.index()) + i;
        if (!of_row.has(column)) sums[tile][2 * half + i] = value;
      }
    }
  }
}

}  // namespace cadenza::kernels::device
