// SPDX-License-Identifier: Apache-2.0
// How a kind of sparse attention makes its index: who owns which patterns, what the owners need and
// what they compute. The moves and the rule of an index follow from it. One file for each kind.
#pragma once

#include "cadenza/plan/index.hpp"

namespace cadenza::plan {

struct IndexMethod {
  OwnedIndex (*owned)(const Workload& workload, const IndexParts& parts, std::size_t holder);
  std::vector<IndexNeed> (*needs)(const Workload& workload, const IndexParts& parts,
                                  std::size_t holder, IndexRound round);
  cost::IndexWork (*work)(const Workload& workload, const IndexParts& parts, std::size_t holder,
                          IndexRound round);
  bool gathers_keys;  ///< round `observed` brings keys, not queries alone
  bool tells_all;     ///< in the rounds `peak` and `sum`, every holder tells every other
};

extern const IndexMethod kVerticalSlash;
extern const IndexMethod kXAttention;

const IndexMethod& index_method(const Workload& workload);

/// Heads divided among the holders, each with all rows.
OwnedIndex owned_heads(const Workload& workload, const IndexParts& parts, std::size_t holder);

std::int64_t length_of(const Workload& workload, const IndexParts& parts);

}  // namespace cadenza::plan
