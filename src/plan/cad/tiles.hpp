// SPDX-License-Identifier: Apache-2.0
// Cuts the attention of one document into tiles, one for each server with a share of it.
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

/// A rectangle of queries x keys of one document on one server.
struct Tile {
  Rank server = 0;
  Range q;
  Range k;

  Weight pairs(const Weights& mask) const { return mask.pairs(q, k); }
  /// The rows that the tile needs: queries that see a key, and keys that are seen.
  TravellingRows travelling(const Weights& mask) const {
    return {mask.queries(q, k).size(), mask.key_rows(q, k)};
  }
};

/// Cuts a tile into one for every share, no side below `block`, with areas as near to the shares as
/// that allows. Splits the servers into two groups and the tile along queries or keys, whichever
/// moves fewer bytes, and continues with the parts. Appends to `tiles`; where blocks are too coarse
/// a share may get none.
/// @param shares  largest first
void divide(const Weights& mask, const Tile& whole, std::span<const Share> shares,
            std::int64_t block, const Transfers& transfers, std::vector<Tile>& tiles);

/// The smallest c, to an eighth of `block`, such that queries `q` see `pairs` or more pairs in keys
/// [0, c).
std::int64_t keys_for(const Weights& mask, Range q, Weight pairs, std::int64_t block);

}  // namespace cadenza::plan
