// SPDX-License-Identifier: Apache-2.0
// Attention of one document cut into as many tiles as servers want shares of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/sparse_density.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

struct Share {
  Rank server = 0;
  Weight pairs = 0;
};

/// Queries x keys of one document.
struct Tile {
  Rank server = 0;
  Range q;
  Range k;

  Weight pairs(const Weights& mask) const { return mask.pairs(q, k); }
  /// Rows that it needs; others see or are seen by nothing.
  Flow flow(const Weights& mask) const { return {mask.queries(q, k).size(), mask.key_rows(q, k)}; }
};

/// Cuts a tile into one for every share, no side below `block`, areas as near to the shares as that
/// allows: into two groups of servers, along queries or along keys, whichever makes fewer rows
/// needed twice, and so on. Appends to `tiles`; where blocks are too coarse a share may get none.
/// @param shares  largest first
void divide(const Weights& mask, const Tile& whole, std::span<const Share> shares,
            std::int64_t block, const Flows& flows, std::vector<Tile>& tiles);

/// The shortest keys [0, c), at the precision of `block`, of which queries `q` see `pairs` or more.
std::int64_t keys_for(const Weights& mask, Range q, Weight pairs, std::int64_t block);

}  // namespace cadenza::plan
