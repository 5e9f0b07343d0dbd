// SPDX-License-Identifier: Apache-2.0
// Half-open ranges and ranks, which every module uses.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cadenza {

/// Number of a rank: in the world or, in plans and their traffic, in the pool that shares a plan
/// (program::Layout::members).
using Rank = int;

/// Half-open range [begin, end), in tokens of a document, rows of a buffer or heads.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  constexpr std::int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool contains(const Range& other) const {
    return begin <= other.begin && other.end <= end;
  }
  constexpr bool overlaps(const Range& other) const {
    return begin < other.end && other.begin < end;
  }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// The intersection of two ranges; empty (begin >= end) where they share nothing.
constexpr Range intersect(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace cadenza
