// SPDX-License-Identifier: Apache-2.0
// Ranks and the index of sparse attention: who holds keys, who observes, who decides.
#pragma once

#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Of one document that is not dense.
struct IndexParts {
  int document = 0;
  Range observed;             ///< last queries, in the text
  std::vector<Home> homes;    ///< all of the document
  std::vector<Home> queries;  ///< the observed ones, ascending by text within a rank's stripe
  std::vector<Rank> holders;  ///< ranks that hold keys, ascending
  /// The query heads whose pattern the n-th holder chooses and keeps.
  Range owned(std::size_t n, int heads) const {
    const auto share = [&](std::size_t i) {
      return static_cast<std::int64_t>(i) * heads / static_cast<std::int64_t>(holders.size());
    };
    return {share(n), share(n + 1)};
  }
  /// The number of a rank among the holders; -1: it holds nothing.
  int holder(Rank rank) const;
};

/// Of all documents that are not dense.
std::vector<IndexParts> index_parts(const Workload& workload);

/// Whether a rank computes something when the messages of a round are there: holders of keys after
/// the first three, owners of heads after the masses.
bool works_in(const Workload& workload, Rank rank, IndexRound round);

/// The diagonals i - j >= 0 from observed queries to the keys `tokens`.
Range observed_diagonals(const Workload& workload, int document, Range tokens);

}  // namespace cadenza::plan
