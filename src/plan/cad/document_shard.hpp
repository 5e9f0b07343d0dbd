// SPDX-License-Identifier: Apache-2.0
// The unit that CAD cuts and moves: pairs of blocks of a document's queries that live on one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/cad/loads.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

/// Two ranges of blocks, paired from the outside inwards: pair i is the i-th block of the head and
/// the i-th block from the end of the tail. With a causal mask all pairs have the same FLOPs,
/// except one with a short block and a last block of the tail that has no partner. Other masks
/// allow fewer query-key pairs. For a whole document head and tail are its two halves.
struct DocumentShard {
  int document = 0;
  Rank home = 0;
  std::int64_t block = 1;
  Range head;  ///< its last block may be short
  Range tail;  ///< its last block may be short; as many blocks as the head, or one more
  Weights mask;

  static constexpr std::int64_t blocks(Range range, std::int64_t block) {
    return (range.size() + block - 1) / block;
  }
  std::int64_t pairs() const { return blocks(tail, block); }
  Range head_of(Range pairs) const {
    return {std::min(head.begin + pairs.begin * block, head.end),
            std::min(head.begin + pairs.end * block, head.end)};
  }
  Range tail_of(Range pairs) const {
    const std::int64_t count = blocks(tail, block);
    return {tail.begin + (count - pairs.end) * block,
            std::min(tail.begin + (count - pairs.begin) * block, tail.end)};
  }
  Weight cost(Range pairs) const { return mask.pairs(head_of(pairs)) + mask.pairs(tail_of(pairs)); }
  /// Keys that the queries of `pairs` see.
  std::int64_t keys(Range pairs) const {
    if (mask.is_plain()) {
      const Range later = tail_of(pairs);
      return later.empty() ? head_of(pairs).end : later.end;
    }
    std::int64_t rows = 0;
    std::int64_t counted = 0;  // end of the keys that are counted
    for (const Range queries : {head_of(pairs), tail_of(pairs)}) {
      mask.for_each_key_range(queries, [&](Range seen) {
        rows += std::max<std::int64_t>(0, seen.end - std::max(seen.begin, counted));
        counted = std::max(counted, seen.end);
      });
    }
    return rows;
  }
  /// Causal query-key pairs of a token of the head and its mirror image in the tail together; for a
  /// whole document its length + 1.
  std::int64_t span() const { return head.begin + tail.begin + pairs() * block + 1; }

  /// The largest number of inner `pairs` whose cost does not exceed `limit`.
  /// @param cost  cost of all `pairs`
  std::int64_t fitting(Range pairs, Weight cost, Weight limit) const {
    if (limit <= 0) return 0;
    if (limit >= cost) return pairs.size();
    // The first guess needs a causal mask whose pairs weigh 1; otherwise the search begins at 0.
    std::int64_t count = 0;
    if (mask.is_plain()) {
      count = static_cast<std::int64_t>(std::min<Weight>(pairs.size(), limit / (block * span())));
    }
    // The guess is low: a pair with a short or missing block leaves room for one more, pairs that
    // the mask hides in part leave room for many.
    for (std::int64_t step = 1; step > 0;) {
      const std::int64_t more = count + step;
      const bool fits = more <= pairs.size() && this->cost({pairs.end - more, pairs.end}) <= limit;
      if (fits) count = more;
      step = fits ? 2 * step : step / 2;
    }
    return count;
  }
};

/// Divides the queries of the workload into shards, by document. Where a document spans ranks, each
/// rank's ranges make shards of their own, so that work begins at home; the first range is paired
/// with the last, which keeps the balance of zigzag sharding.
std::vector<DocumentShard> make_shards(const Workload& workload, const Homes& homes,
                                       std::int64_t block);

}  // namespace cadenza::plan
